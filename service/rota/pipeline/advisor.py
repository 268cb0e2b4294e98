"""What other strategies would have done: each group's real history of members, replayed through each strategy.

A strategy lives in a world of its own: its members own the units that it gave them before, so its moves are those of a
fleet that had used it from the beginning. It is asked once for each step of the group, however many rounds the real
strategy took for that; a cooperative one takes a second round where units have to be given up first.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from rota.core.assignors.forecast import Partitions
from rota.core.types import consumer, leader, permits, worker
from rota.pipeline.facts.fact import Event, Row, us
from rota.pipeline.facts.steps import Holders, is_cooperative
from rota.pipeline.facts.timeouts import Silences
from rota.pipeline.facts.units import Decoders, decode_shares, load_decoders
from rota.pipeline.facts.view import GroupView
from rota.pipeline.lake import ADVICE_TABLE, LATEST, Lake, Snapshot
from rota.pipeline.tables import ADVICE, ADVISOR, Line, ddl, lines_of, wide
from rota.pipeline.what_ifs import NO_CHANGE, STATIC, STRATEGY, TIMEOUT, Cost, History, Known
from rota.pipeline.what_ifs import Step as HistoryStep
from rota.pipeline.worlds import (
    NO_PARTITIONS,
    Kept,
    Members,
    Outcome,
    Seats,
    Subscriptions,
    World,
    partitions_of,
    subscriptions_of,
)

if TYPE_CHECKING:
    from pyspark.sql import Row as SparkRow

STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky")
ACTUAL = "(actual)"
_OTHER_UNITS = (leader.PROTOCOL_TYPE, permits.PROTOCOL_TYPE, worker.PROTOCOL_TYPE)
"""Protocol types with units that no strategy of partitions assigns."""


def advise(lake: Lake, *, strategies: Sequence[str] = STRATEGIES, decoder: str = "") -> int:
    """Replay all lines, into the tables `advisor` and `what_ifs`; returns how many rows the first has.

    Prices of session timeouts are by the silences of each group up to its last line.
    """
    tables = Snapshot(lake)
    lines = tables.lines()
    told = lines.where((lines.group_id != "") & ~lines.kind.isin("session_stats", "offsets_committed"))
    known = known_silences(tables)
    rows = told.groupBy("namespace", "group_id").applyInArrow(_replayer(tuple(strategies), decoder, known), ddl(ADVICE))
    lake.overwrite(rows, ADVICE_TABLE, "fact")
    return Snapshot(lake).closed(ADVISOR.name).count()


class Change(NamedTuple):
    """A change of a group and its price, by the columns of `what_ifs`; what stands still is in units times seconds."""

    namespace: str
    group_id: str
    change: str
    value: str
    rebalances: int
    join_phases: int
    moves: int
    paused_unit_s: float
    waiting_unit_s: float
    false_expiries: float


def changes(lake: Lake, group_id: str = "") -> list[Change]:
    """The last results, group by group, first without any change; of one group only if it is named."""
    rows = Snapshot(lake).closed("what_ifs")
    if group_id:
        rows = rows.where(rows.group_id == group_id)
    found = [
        Change(
            *(row.namespace, row.group_id, row.change, row.value, row.rebalances, row.join_phases, row.moves),
            row.paused_unit_ms / 1000,
            row.waiting_unit_ms / 1000,
            row.false_expiries,
        )
        for row in rows.collect()
    ]
    order = (NO_CHANGE, STRATEGY, STATIC, TIMEOUT)
    return sorted(found, key=lambda c: (c.namespace, c.group_id, order.index(c.change), len(c.value), c.value))


def _replayer(
    strategies: Sequence[str], decoder: str, known: Mapping[tuple[str, str], Known]
) -> Callable[[tuple[Any, ...], pa.Table], pa.Table]:
    """The function that replays the lines of one group."""

    def run(key: tuple[Any, ...], lines: pa.Table) -> pa.Table:
        namespace, group_id = (part.as_py() for part in key)
        replay = GroupReplay(namespace, group_id, strategies, load_decoders(decoder), known.get((namespace, group_id)))
        return wide(list(replay_lines(replay, lines_of(lines.sort_by("seq")))), ADVICE)

    return run


def replay_lines(replay: GroupReplay, lines: Iterable[Line]) -> Iterator[Row]:
    """The rows of a group, whose lines come in the order of their numbers."""
    for line in lines:
        # The fold names the lines that cannot be read, in the table `unreadable`.
        with suppress(AttributeError, IndexError, KeyError, TypeError, ValueError):
            yield from replay.add(line)
    yield from replay.finish()


def known_silences(tables: Snapshot) -> dict[tuple[str, str], Known]:
    """By namespace and group: the session timeout, and the silences of all members up to the last line."""
    return {(row.namespace, row.group_id): Known(row.session_timeout_ms, _silences(row)) for row in _latest(tables)}


def _latest(tables: Snapshot) -> list[SparkRow]:
    """Each group's last row, which counts all silences since the group was made."""
    rows = tables.everything("timeout_advice")
    rows.createOrReplaceTempView("all_timeout_advice")
    return rows.sparkSession.sql(LATEST.format(view="all_timeout_advice")).collect()


def _silences(row: SparkRow) -> Silences:
    late = dict(zip(row.late_ms, row.late, strict=True))
    return Silences(row.gaps, row.longest_kept_ms, late, row.longest_gap_ms, row.member_ms)


class _Step(NamedTuple):
    """The step that is under way: the number and the time of its first generation, and what really happened so far."""

    generation_id: int
    at_ms: int
    outcome: Outcome


class GroupReplay:
    """One group, in as many worlds as there are strategies, and in the real one.

    All worlds have the same members and units at each step. A round that only hands on what the round before took away
    belongs to its step, which is over when another one begins.
    """

    def __init__(
        self,
        namespace: str,
        group_id: str,
        strategies: Sequence[str],
        decoders: Decoders | None = None,
        known: Known | None = None,
    ) -> None:
        self._view = GroupView(namespace, group_id)
        self._actual = Holders()
        self._worlds = {name: World() for name in strategies}
        self._decoders = decoders
        self._step: _Step | None = None
        self._named: dict[str, tuple[str, str | None]] = {}
        self._said: dict[str, dict[str, bytes]] = {}
        """By member, and by the name of a protocol, its metadata."""
        self._history = History(known)
        self._held_in = {ACTUAL: self._actual.held_by, **{name: w.held_by for name, w in self._worlds.items()}}

    def add(self, line: Line) -> list[Row]:
        """The rows that this line completes: it may begin a step, and so end the real one before it."""
        event = Event.of(line)
        rows: list[Row] = []
        if self._view.state["epoch"] and event.epoch != self._view.state["epoch"]:
            self._view.forget_unsettled()
        self._history.note(event, self._held_in, ACTUAL)
        if event.kind == "assignment_synced":
            rows = self._assigned(event)
        elif event.kind in ("member_joined", "member_updated"):
            member = event.payload["member"]
            self._said[member["member_id"]] = {name: b64decode(metadata) for name, metadata in member["protocols"]}
        elif event.kind == "member_fenced":
            self._rename(event.payload["member_id"], event.payload["new_member_id"])
        elif event.kind in ("group_emptied", "group_deleted"):
            rows = self._end_step()
            self._history.begin(HistoryStep(event.at_ms, "", NO_PARTITIONS, (), joined=False, cost=None))
            self._actual.clear()
            for world in self._worlds.values():
                world.clear()
        self._view.take(event)
        return rows

    def finish(self) -> list[Row]:
        """The rows that are complete because no line follows."""
        return [*self._end_step(), *self._history.rows(self._view.key, ACTUAL)]

    def _end_step(self) -> list[Row]:
        step, self._step = self._step, None
        return [] if step is None else [self._row(step, ACTUAL, step.outcome)]

    def _assigned(self, event: Event) -> list[Row]:
        view, payload = self._view, event.payload
        shares = decode_shares(payload["assignments"], view.state["protocol_type"], self._decoders)
        if shares is None:
            return []
        given = {member: shares.get(member, []) for member in view.members} | shares
        name = view.state["protocol_name"]
        found = self._actual.assign(given, name)
        if not found.after.units and not found.in_motion:
            return []
        joined = not payload["resync"]
        if found.number > 1 and (step := self._step) is not None:
            self._step = step._replace(outcome=step.outcome.continued(found, joined=joined))
            self._history.go_on(event.at_ms, self._step.outcome)
            return []
        rows = self._end_step()
        units = found.after.units | found.in_motion if found.in_motion else found.after.units
        size = found.after.size + len(found.in_motion)
        outcome = Outcome(found.after, size, found.change, int(joined), is_cooperative(name) is True)
        self._step = _Step(payload["generation_id"], event.at_ms, outcome)
        # The same pair for a member in each of its steps, of which there may be many.
        members = [self._named.setdefault(m, (m, image["group_instance_id"])) for m, image in view.members.items()]
        partitions = partitions_of(units)
        said = self._subscriptions(name, members, partitions)
        step_ = HistoryStep(event.at_ms, name, partitions, members, joined, Cost.of(outcome), said=said)
        self._history.begin(step_)
        return rows + (self._in_all_worlds(self._step, step_) if self._is_of_partitions else [])

    @property
    def _is_of_partitions(self) -> bool:
        """Whether strategies of partitions could assign the group's units: not an election, permits or connectors."""
        return self._view.state["protocol_type"] not in _OTHER_UNITS

    def _subscriptions(self, name: str, members: Members, partitions: Partitions) -> Subscriptions | None:
        """What the members say of themselves, unless it is the same of all; None also where it cannot be read."""
        if self._view.state["protocol_type"] != consumer.PROTOCOL_TYPE:
            return None
        said = tuple((m, instance_id, self._said.get(m, {}).get(name, b"")) for m, instance_id in members)
        return subscriptions_of(said, partitions)

    def _in_all_worlds(self, step: _Step, real: HistoryStep) -> list[Row]:
        seats = Seats.of(real.members, real.said)
        kept: list[Kept] = []
        rows = []
        for name, world in self._worlds.items():
            outcome = world.step(name, real.partitions, seats, joined=real.joined, others=kept)
            real.others[name] = outcome
            rows.append(self._row(step, name, outcome))
        return rows

    def _rename(self, old_id: str, new_id: str) -> None:
        if old_id in self._said:
            self._said[new_id] = self._said.pop(old_id)
        self._actual.rename(old_id, new_id)
        for world in self._worlds.values():
            world.rename(old_id, new_id)

    def _row(self, step: _Step, name: str, outcome: Outcome) -> Row:
        after, change = outcome.after, outcome.change
        # By their places: there is a row for each strategy and step.
        values = (
            *(self._view.namespace, self._view.group_id, step.generation_id, us(step.at_ms), name),
            *(len(after.sizes), outcome.units, change.moves, change.forced_moves, change.least_moves, change.revoked),
            *(outcome.rounds, outcome.paused_units, after.imbalance, after.stddev),
        )
        return Row(ADVISOR.name, values)
