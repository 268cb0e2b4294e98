"""What other strategies would have done: each group's real history of members, replayed through each strategy.

A strategy lives in a world of its own: what its members own is what it gave them before, so its moves are those of a
fleet that had used it from the beginning. It is asked once for each step of the group, however many rounds the real
strategy took for that; a cooperative one takes a second round where units have to be given up first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from rota.assignors import MemberSubscription, assign, strategy
from rota.pipeline.events import Line, ddl, lines_of
from rota.pipeline.facts.churn import AnyShares, Change, Holding
from rota.pipeline.facts.fact import Event, Row, row, us
from rota.pipeline.facts.steps import MOST_ROUNDS, Holders, Round, is_cooperative
from rota.pipeline.facts.units import Decoder, decode_shares, load_decoder
from rota.pipeline.facts.view import GroupView
from rota.pipeline.files import WRITTEN, TableWriter, Written
from rota.pipeline.gold import by_group, sliced
from rota.pipeline.lake import Lake
from rota.pipeline.tables import ADVISOR, GOLD
from rota.pipeline.tasks import told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky")
ACTUAL = "(actual)"
_TELLING = "kind <> 'offsets_committed' AND kind <> 'session_stats' AND group_id <> ''"
"""The lines from which members and assignments are known: few of all."""
_NOTHING = Holding({})


def advise(spark: SparkSession, lake: Lake, *, strategies: Sequence[str] = STRATEGIES, decoder: str = "") -> int:
    """Replay every assignment that is in bronze, into the table `advisor`; returns how many rows it has."""
    lines = sliced(spark, lake, 0, lake.bronze.batch).where(_TELLING)
    table = lake.gold("advisor")
    run = _replayer(str(table.path.parent), tuple(strategies), decoder)
    written = [Written(*each) for each in by_group(lines).mapInArrow(run, ddl(WRITTEN)).collect()]
    table.commit(written, table.batch + 1, replace=True)
    return sum(each.rows for each in written)


def _replayer(
    folder: str, strategies: Sequence[str], decoder: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decode = load_decoder(decoder) if decoder else None
        writer = TableWriter(folder, {"advisor": GOLD["advisor"].schema}, "advice")
        for replayed in replays(chain.from_iterable(map(lines_of, batches)), strategies, decode):
            writer.add(*replayed)
        yield told(writer.close())

    return run


def replays(lines: Iterable[Line], strategies: Sequence[str], decoder: Decoder | None = None) -> Iterator[Row]:
    """The rows of `advisor` for these lines, which come group by group and ordered by number."""
    for key, of_group in groupby(lines, key=lambda line: (line.shard_id, line.namespace, line.group_id)):
        replay = GroupReplay(key[1], key[2], strategies, decoder)
        for line in of_group:
            yield from replay.add(line)
        yield from replay.finish()


@dataclass(slots=True)
class _Outcome:
    """What a step came to in one world."""

    after: Holding
    units: int
    change: Change
    rounds: int
    cooperative: bool

    def continued(self, found: Round, *, joined: bool) -> _Outcome:
        """The same step after one more round of it."""
        units = len(found.after.units) + len(found.in_motion)
        change = Change(*map(sum, zip(self.change, found.change, strict=True)))
        return _Outcome(found.after, units, change, self.rounds + joined, self.cooperative or found.number > 1)


class _Step(NamedTuple):
    """The step that is under way: the number and the time of its first generation, and what really happened so far."""

    generation_id: int
    at_ms: int
    outcome: _Outcome


class GroupReplay:
    """One group, in as many worlds as there are strategies, and in the real one.

    All worlds have the same members and units at each step. A round that only hands on what the round before took away
    belongs to its step, which is over when another one begins.
    """

    def __init__(
        self, namespace: str, group_id: str, strategies: Sequence[str], decoder: Decoder | None = None
    ) -> None:
        self._view = GroupView(namespace, group_id)
        self._actual = Holders()
        self._worlds: dict[str, Holding] = dict.fromkeys(strategies, _NOTHING)
        self._decoder = decoder
        self._step: _Step | None = None

    def add(self, line: Line) -> list[Row]:
        """The rows that this line completes: it may begin a step, and so end the real one before it."""
        event = Event.of(line)
        rows: list[Row] = []
        if self._view.state["epoch"] and event.epoch != self._view.state["epoch"]:
            self._view.forget_unsettled()
        if event.kind == "assignment_synced":
            rows = self._assigned(event)
        elif event.kind == "member_fenced":
            self._rename(event.payload["member_id"], event.payload["new_member_id"])
        elif event.kind in ("group_emptied", "group_deleted"):
            rows = self.finish()
            self._actual.clear()
            self._worlds = dict.fromkeys(self._worlds, _NOTHING)
        self._view.take(event)
        return rows

    def finish(self) -> list[Row]:
        """The row of what really happened in the step that is under way, for it goes no further."""
        step, self._step = self._step, None
        return [] if step is None else [self._row(step.generation_id, step.at_ms, ACTUAL, step.outcome)]

    def _assigned(self, event: Event) -> list[Row]:
        view, payload = self._view, event.payload
        shares = decode_shares(payload["assignments"], view.state["protocol_type"], self._decoder)
        if shares is None:
            return []
        given = {member: shares.get(member, []) for member in view.members} | shares
        found = self._actual.assign(given, view.state["protocol_name"])
        if not found.after.units and not found.in_motion:
            return []
        joined = not payload["resync"]
        if found.number > 1 and (step := self._step) is not None:
            self._step = step._replace(outcome=step.outcome.continued(found, joined=joined))
            return []
        rows = self.finish()
        cooperative = is_cooperative(view.state["protocol_name"]) is True
        units = found.after.units | found.in_motion if found.in_motion else found.after.units
        size = found.after.size + len(found.in_motion)
        self._step = _Step(
            payload["generation_id"], event.at_ms, _Outcome(found.after, size, found.change, int(joined), cooperative)
        )
        return rows + self._in_all_worlds(units, joined=joined)

    def _in_all_worlds(self, units: frozenset[str], *, joined: bool) -> list[Row]:
        assert self._step is not None
        counts, step = _counts(units), self._step
        # Only those strategies that look at what members hold need subscriptions of their own.
        forgetful = self._subscriptions(counts, {})
        rows = []
        for name, before in self._worlds.items():
            if strategy(name).remembers:
                outcome = self._settled(name, before, counts)
            else:
                after = Holding(assign(name, counts, forgetful))
                outcome = _Outcome(after, after.size, after.change_from(before), 1, cooperative=False)
            if not joined and not outcome.change.revoked:
                # Nothing has to be given up: the leader assigns it without a join phase, as the real one did.
                outcome.rounds = 0
            self._worlds[name] = outcome.after
            rows.append(self._row(step.generation_id, step.at_ms, name, outcome))
        return rows

    def _settled(self, name: str, before: Holding, counts: Mapping[str, int]) -> _Outcome:
        """The assignment when no member has to give anything up any more; `revoked` counts those of all rounds."""
        cooperative = strategy(name).cooperative
        owned, rounds, revoked = before, 0, 0
        while True:
            after = Holding(assign(name, counts, self._subscriptions(counts, owned.shares)))
            change = after.change_from(owned)
            rounds, revoked = rounds + 1, revoked + change.revoked
            if not cooperative or not change.revoked or rounds == MOST_ROUNDS:
                break
            owned = after
        if rounds > 1:
            change = after.change_from(before)._replace(revoked=revoked)
        return _Outcome(after, after.size, change, rounds, cooperative)

    def _subscriptions(self, counts: Mapping[str, int], owned: AnyShares) -> list[MemberSubscription]:
        """Each member may get all that the group has: the real subscriptions decide only which members there are."""
        topics, generation_id = tuple(counts), self._view.generation_id
        return [
            MemberSubscription(member_id, image["group_instance_id"], topics, owned.get(member_id, ()), generation_id)
            for member_id, image in self._view.members.items()
        ]

    def _rename(self, old_id: str, new_id: str) -> None:
        self._actual.rename(old_id, new_id)
        self._worlds = {
            name: Holding({(new_id if member == old_id else member): share for member, share in held.shares.items()})
            for name, held in self._worlds.items()
        }

    def _row(self, generation_id: int, at_ms: int, name: str, outcome: _Outcome) -> Row:
        after, change = outcome.after, outcome.change
        partly = outcome.cooperative or not outcome.rounds
        return row(
            ADVISOR,
            **self._view.key,
            generation_id=generation_id,
            at=us(at_ms),
            assignor=name,
            members=len(after.shares),
            units=outcome.units,
            **change._asdict(),
            rounds=outcome.rounds,
            paused_units=change.moves if partly else outcome.units,
            imbalance=after.imbalance,
            stddev=after.stddev,
        )


# What a group shares hardly ever changes from one generation to the next.
@lru_cache(maxsize=64)
def _counts(units: frozenset[str]) -> Mapping[str, int]:
    """How many partitions each topic has: the highest that was assigned, plus one. Opaque units are one topic's."""
    counts: dict[str, int] = {}
    for unit in units:
        topic, slash, number = unit.rpartition("/")
        if not slash or not number.isdigit():
            return {"units": len(units)}
        counts[topic] = max(counts.get(topic, 0), int(number) + 1)
    return counts
