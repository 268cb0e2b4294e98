"""Folding lines into facts: any cut of the journal into slices gives the same rows.

A slice has the lines since the slice before. Each group's lines are folded in the order of their numbers, beginning
with the carried state: that after the last line, as JSON. There is no watermark, so nothing is ever too late,
and no store of states but a table with one row a group.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rota.pipeline.events import Line
from rota.pipeline.facts.acts import Acts, LeaderChanges
from rota.pipeline.facts.assignments import Assignments
from rota.pipeline.facts.fact import Event, Fact, Row, row, us
from rota.pipeline.facts.fenced import FencedRequests
from rota.pipeline.facts.heartbeats import Heartbeats
from rota.pipeline.facts.leaders import LeaderTenures
from rota.pipeline.facts.members import Members
from rota.pipeline.facts.offsets import Offsets
from rota.pipeline.facts.rebalances import Rebalances
from rota.pipeline.facts.shards import Failovers, Topics
from rota.pipeline.facts.states import GroupStates
from rota.pipeline.facts.timeouts import Timeouts
from rota.pipeline.facts.units import Decoders
from rota.pipeline.facts.view import GroupView
from rota.pipeline.tables import UNREADABLE

_MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""How reading a payload fails that is not what its kind says."""
_MOST_CHARS = 200

CARRIED = "carried"
"""The kind of the line that stands for all lines of its group up to its number; `payload` is the state after them."""


class GroupFold:
    """One group's facts, line by line. Lines of a shard or of topics belong to a group without an id."""

    def __init__(
        self, namespace: str, group_id: str, *, decoders: Decoders | None = None, with_offsets: bool = True
    ) -> None:
        """Without offsets, `fold_offsets` makes their rows, and commits are left out that `telling_commits` does not
        name.
        """
        self._key = (namespace, group_id)
        self._decoders = decoders
        self._with_offsets = with_offsets
        self._begin({"view": None, "facts": {}})

    @classmethod
    def resumed(cls, namespace: str, group_id: str, carried: dict[str, Any]) -> GroupFold:
        """As it was when `dump` said so."""
        fold = cls(namespace, group_id)
        fold.resume(carried)
        return fold

    def resume(self, carried: dict[str, Any]) -> None:
        """Go on from there."""
        self._begin(carried)

    def add(self, line: Line) -> Iterator[Row]:
        """The rows that this line closes; none for one that stands for all before it."""
        if line.kind == CARRIED:
            self._begin(json.loads(line.payload))
            return
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

    def seen(self, seq: int) -> None:
        """Note the number of a line without anything to fold here."""
        self.view.state["seq"] = max(seq, self.view.last_seq)

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
        return json.dumps({"view": self.view.state, "facts": facts}, separators=(",", ":"), ensure_ascii=False)

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
        if not self._with_offsets:
            del self.facts["offsets"]
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


Key = tuple[int, str, str]
