"""Folding lines into facts: any cut of the journal into slices gives the same rows.

Each batch has the lines since the batch before. The lines of each group are folded in the order of their numbers, from
the carried state on: the state after the group's last line, as JSON. Lines that the state already has are skipped, so a
batch that is folded twice changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rota.pipeline.facts.acts import Acts, Failovers, Heartbeats, LeaderChanges, Topics
from rota.pipeline.facts.assignments import Assignments
from rota.pipeline.facts.fact import Event, Fact, Row, row, us
from rota.pipeline.facts.fenced import FencedRequests
from rota.pipeline.facts.members import Members
from rota.pipeline.facts.offsets import Offsets
from rota.pipeline.facts.rebalances import Rebalances
from rota.pipeline.facts.states import GroupStates, LeaderTenures
from rota.pipeline.facts.timeouts import Timeouts
from rota.pipeline.facts.units import Decoders
from rota.pipeline.facts.view import GroupView
from rota.pipeline.failures import LakeRefused
from rota.pipeline.tables import CURRENT, FOLDED, GOLD, OPEN, UNREADABLE, Line, lines_of, wide, wide_schema

_MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""How reading a payload fails that is not what its kind says."""
_MOST_CHARS = 200

CARRIED = "carried"
"""The kind of a row that stands for all lines of its group up to its number; `payload` is the state after them."""

FORM = 6
"""Goes up when the carried state changes its form."""
"""The shard, the namespace and the id of a group."""

Key = tuple[int, str, str]
"""The shard, the namespace and the id of a group."""

OUTPUT = wide_schema(*(GOLD[name] for name in FOLDED), CURRENT)
"""What a fold returns: the rows that are complete, and the group's row of `current`."""


class GroupFold:
    """One group's facts, line by line. Lines of a shard or of topics belong to a group without an id."""

    def __init__(self, namespace: str, group_id: str, *, decoders: Decoders | None = None) -> None:
        self._key = (namespace, group_id)
        self._decoders = decoders
        self._begin({"view": None, "facts": {}})

    @classmethod
    def resumed(cls, namespace: str, group_id: str, carried: dict[str, Any]) -> GroupFold:
        """As it was when `dump` said so."""
        fold = cls(namespace, group_id)
        fold.resume(carried)
        return fold

    def resume(self, carried: dict[str, Any]) -> None:
        """Go on from there; raises `LakeRefused` if another release has written the state."""
        if carried.get("form") != FORM:
            raise LakeRefused(
                "the tables were made by another release of rota: keep this folder, and name another one, into which "
                "all lines of the journal are read"
            )
        self._begin(carried)

    def add(self, line: Line) -> Iterator[Row]:
        """The rows that this line closes."""
        try:
            event = Event.of(line)
        except ValueError as error:
            self.view.state["seq"] = line.seq
            yield _set_aside(line, error)
            return
        if event.epoch != self.view.state["epoch"]:
            yield from self._taken_over(event)
        yield from self._take(line, event)

    def _take(self, line: Line, event: Event) -> Iterator[Row]:
        """Let each fact read the line, also where another one cannot, because a field is missing or malformed."""
        failed: Exception | None = None
        for fact in self._by_kind.get(event.kind, ()):
            try:
                yield from fact.add(event, self.view)
            except _MALFORMED as error:
                failed = error
        try:
            self.view.take(event)
        except _MALFORMED as error:
            self.view.state["seq"] = line.seq
            failed = error
        if failed is not None:
            yield _set_aside(line, failed)

    def open_rows(self) -> Iterator[Row]:
        """The open rows, as far as they are known; `to_at`, `ended_at` and columns that follow from them are null."""
        for fact in self.facts.values():
            yield from fact.open_rows(self.view)

    @property
    def last_seq(self) -> int:
        """The number of the last line that it has taken in."""
        return self.view.last_seq

    def dump(self) -> str:
        """The state after the last line."""
        facts = {name: fact.state for name, fact in self.facts.items()}
        document = {"form": FORM, "view": self.view.state, "facts": facts}
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False)

    def _begin(self, carried: dict[str, Any]) -> None:
        states = carried["facts"]
        namespace, group_id = self._key
        self.view = GroupView(namespace, group_id, carried["view"])
        self.facts: dict[str, Fact] = {
            "rebalances": Rebalances(states.get("rebalances")),
            "states": GroupStates(states.get("states")),
            "leaders": LeaderTenures(states.get("leaders")),
            "members": Members(states.get("members")),
            "assignments": Assignments(states.get("assignments"), self._decoders),
            "heartbeats": Heartbeats(states.get("heartbeats")),
            "timeouts": Timeouts(states.get("timeouts")),
            "offsets": Offsets(states.get("offsets")),
            "fenced": FencedRequests(states.get("fenced")),
            "leader_changes": LeaderChanges(states.get("leader_changes")),
            "acts": Acts(states.get("acts")),
        }
        if not group_id:
            self.facts = {
                "failovers": Failovers(states.get("failovers")),
                "topics": Topics(states.get("topics")),
                "acts": Acts(states.get("acts")),
            }
        self._by_kind: dict[str, list[Fact]] = {}
        for fact in self.facts.values():
            for kind in fact.table.sources:
                self._by_kind.setdefault(kind, []).append(fact)

    def _taken_over(self, event: Event) -> Iterator[Row]:
        if self.view.state["epoch"]:
            for fact in self.facts.values():
                yield from fact.taken_over(event, self.view)
            self.view.forget_unsettled()


def _set_aside(line: Line, error: Exception) -> Row:
    said = f"{type(error).__name__}: {error}"
    return row(
        UNREADABLE,
        shard_id=line.shard_id,
        seq=line.seq,
        at=us(line.at_ms),
        namespace=line.namespace,
        group_id=line.group_id,
        kind=line.kind,
        error=said[:_MOST_CHARS],
    )


def fold_group(key: Key, lines: pa.Table, decoders: Decoders | None = None) -> pa.Table:
    """Fold a group's new lines, and the row of its carried state if it has one; returns a table of `OUTPUT`."""
    shard_id, namespace, group_id = key
    fold = GroupFold(namespace, group_id, decoders=decoders)
    carried = lines.filter(pc.equal(lines.column("kind"), CARRIED))
    for state in carried.column("payload").to_pylist():
        fold.resume(json.loads(state))
    rows: list[tuple[str, tuple[Any, ...]]] = []
    for line in lines_of(lines.filter(pc.not_equal(lines.column("kind"), CARRIED)).sort_by("seq")):
        if line.seq > fold.last_seq:
            rows += fold.add(line)
    return wide([*rows, (CURRENT.name, current_row(shard_id, fold))], OUTPUT)


def current_row(shard_id: int, fold: GroupFold) -> tuple[Any, ...]:
    """The group's row of `current`."""
    opened: dict[str, list[dict[str, Any]]] = {name: [] for name in OPEN}
    for table, row_values in fold.open_rows():
        names = (column.name for column in GOLD[table].columns)
        opened[table].append(dict(zip(names, row_values, strict=True)))
    view = fold.view
    state = next(iter(opened["group_states"]), {})
    tenure = next(iter(opened["leader_tenures"]), {})
    values = {
        "shard_id": shard_id,
        **view.key,
        "state": state.get("state", view.now),
        "since_at": state.get("from_at"),
        "generation_id": view.generation_id,
        "protocol_type": view.state["protocol_type"],
        "protocol_name": view.state["protocol_name"],
        "leader_id": tenure.get("leader_id", ""),
        "leader_since_at": tenure.get("from_at"),
        "member_count": len(view.members),
        "seq": fold.last_seq,
        "open": opened,
        "carry": fold.dump(),
    }
    return tuple(values[column.name] for column in CURRENT.columns)
