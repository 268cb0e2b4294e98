"""What other strategies would have done: every group's real history of members, through every strategy we have.

A strategy lives in a world of its own: what its members own is what it gave them before, so its moves are those of a
fleet that had used it from the beginning. Cooperative strategies take a second round where units have to be given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, groupby
from typing import TYPE_CHECKING

import pyarrow as pa

from rota.assignors import MemberSubscription, assign, strategy
from rota.pipeline.events import Line, ddl, lines_of
from rota.pipeline.facts.churn import AnyShares, Change, Holding
from rota.pipeline.facts.fact import Event, Row, row, us
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
COOPERATIVE = frozenset({"cooperative-sticky"})
_TELLING = "kind <> 'offsets_committed' AND kind <> 'session_stats' AND group_id <> ''"
"""The lines from which members and assignments are known: few of all."""
_MOST_ROUNDS = 3
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


class GroupReplay:
    """One group, in as many worlds as there are strategies, and in the real one."""

    def __init__(
        self, namespace: str, group_id: str, strategies: Sequence[str], decoder: Decoder | None = None
    ) -> None:
        self._view = GroupView(namespace, group_id)
        self._worlds: dict[str, Holding] = dict.fromkeys((ACTUAL, *strategies), _NOTHING)
        self._decoder = decoder

    def add(self, line: Line) -> list[Row]:
        """A row for each world where this line is an assignment."""
        event = Event.of(line)
        rows: list[Row] = []
        if self._view.state["epoch"] and event.epoch != self._view.state["epoch"]:
            self._view.forget_unsettled()
        if event.kind == "assignment_synced":
            rows = self._assigned(event)
        elif event.kind == "member_fenced":
            self._rename(event.payload["member_id"], event.payload["new_member_id"])
        elif event.kind == "group_emptied":
            self._worlds = dict.fromkeys(self._worlds, _NOTHING)
        self._view.take(event)
        return rows

    def _assigned(self, event: Event) -> list[Row]:
        view = self._view
        shares = decode_shares(event.payload["assignments"], view.state["protocol_type"], self._decoder)
        if shares is None or not any(shares.values()):
            return []
        actual = Holding({member: shares.get(member, []) for member in view.members} | shares)
        counts = _counts(actual.units)
        # Only those strategies that look at what members hold need subscriptions of their own.
        forgetful = self._subscriptions(counts, {})
        rows = []
        for name, before in self._worlds.items():
            if name != ACTUAL and strategy(name).remembers:
                after, change, rounds = self._deal(name, before, counts)
            else:
                after = actual if name == ACTUAL else Holding(assign(name, counts, forgetful))
                change, rounds = after.change_from(before), 1
            self._worlds[name] = after
            rows.append(self._row(event, name, after, change, rounds))
        return rows

    def _deal(self, name: str, before: Holding, counts: Mapping[str, int]) -> tuple[Holding, Change, int]:
        """What this strategy makes of the members, and in how many rounds; `revoked` is of all of these."""
        owned, rounds, revoked = before, 0, 0
        while True:
            after = Holding(assign(name, counts, self._subscriptions(counts, owned.shares)))
            change = after.change_from(owned)
            rounds, revoked = rounds + 1, revoked + change.revoked
            if name not in COOPERATIVE or not change.revoked or rounds == _MOST_ROUNDS:
                break
            owned = after
        if rounds > 1:
            change = after.change_from(before)._replace(revoked=revoked)
        return after, change, rounds

    def _subscriptions(self, counts: Mapping[str, int], owned: AnyShares) -> list[MemberSubscription]:
        """Everybody may get everything that the group has: the real subscriptions decide only who is there."""
        topics, generation_id = tuple(counts), self._view.generation_id
        return [
            MemberSubscription(member_id, image["group_instance_id"], topics, owned.get(member_id, ()), generation_id)
            for member_id, image in self._view.members.items()
        ]

    def _rename(self, old_id: str, new_id: str) -> None:
        self._worlds = {
            name: Holding({(new_id if member == old_id else member): share for member, share in held.shares.items()})
            for name, held in self._worlds.items()
        }

    def _row(self, event: Event, name: str, after: Holding, change: Change, rounds: int) -> Row:
        units, moves = after.size, len(change.moved)
        cooperative = name in COOPERATIVE or (name == ACTUAL and self._view.state["protocol_name"] in COOPERATIVE)
        return row(
            ADVISOR,
            namespace=event.namespace,
            group_id=event.group_id,
            generation_id=event.payload["generation_id"],
            at=us(event.at_ms),
            assignor=name,
            members=len(after.shares),
            units=units,
            moves=moves,
            forced_moves=change.forced_moves,
            least_moves=change.least_moves,
            revoked=change.revoked,
            rounds=rounds,
            paused_units=moves if cooperative else units,
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
