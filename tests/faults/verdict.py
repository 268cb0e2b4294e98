"""Was anything lost, repeated, or taken from a live member? The history of a load against the journal of the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol

from rota.core.group import records as r
from rota.core.group.records import decode_entry
from rota.core.replica.ports import JournalEvent
from rota.storage.store import SqlStore
from tests.faults.histories import WatchStream, check_commits, check_holders, check_watches
from tests.faults.load import REBALANCE_MS, Crowd, Load
from tests.faults.record import Record
from tests.simulation.checks import check
from tests.simulation.history import Call, History, Landed
from tests.simulation.profiles import Profile

LOST = ("S4", "S5", "S9", "S10", "S12", "S13", "D2")
REPEATED = ("S1", "S8", "S11")
_PAGE = 1_000
_LINE_FIELDS = ("at_ms", "namespace", "group_id", "generation_id", "kind", "reason", "payload")


@dataclass
class Verdict:
    """The result of a run. Each of `violations` begins with the invariant's id; EVICTED names live members."""

    acked: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0
    generations: int = 0
    gave_up: int = 0
    """Shares that members gave up by their own deadline, for no replica answered in time."""
    watched: int = 0
    """Lines that watches showed."""
    violations: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int:
        return self._of(*LOST)

    @property
    def evicted(self) -> int:
        return self._of("EVICTED", "L1")

    @property
    def independent(self) -> int:
        """The violations that the independent checks found."""
        return self._of("LIN", "HOLDER", "WATCH")

    @property
    def repeated(self) -> int:
        return self._of(*REPEATED)

    def _of(self, *ids: str) -> int:
        return sum(violation.split(" ", 1)[0] in ids for violation in self.violations)

    def assert_clean(self) -> None:
        print(self)
        assert not self.violations, "\n".join(self.violations)

    def __str__(self) -> str:
        acked = ", ".join(f"{count} {kind}" for kind, count in sorted(self.acked.items()))
        wrong = f"lost {self.lost}, evicted {self.evicted}, repeated {self.repeated}, "
        wrong += f"by independent checks {self.independent}, in all {len(self.violations)}"
        seen = f"unanswered {self.unanswered}; watched {self.watched} lines; generations {self.generations}"
        return f"acknowledged {acked}; {seen}; {wrong}"


class Judged(Protocol):
    """The servers of a load, and their store."""

    dsn: str
    shard_count: int
    lease_ms: int


async def judge(load: Load, cluster: Judged, *, quiet_since_ms: int | None = None) -> Verdict:
    """Look at all that has been acknowledged up to now; the load may go on meanwhile.

    With `quiet_since_ms` no rebalance may have started after that time: no member came or went.
    """
    asked_ms = load.record.clock.now_ms()
    # What is shown after this may not be in the journal that is read.
    streams = [replace(stream, events=stream.events[:]) for stream in load.record.streams]
    journal = await _read_journal(cluster.dsn, cluster.shard_count)
    return judged(
        load.record,
        load.crowd,
        journal,
        asked_ms=asked_ms,
        lease_ms=cluster.lease_ms,
        quiet_since_ms=quiet_since_ms,
        streams=streams,
    )


def judged(
    record: Record,
    crowd: Crowd,
    journal: dict[int, list[JournalEvent]],
    *,
    asked_ms: int,
    lease_ms: int,
    quiet_since_ms: int | None = None,
    streams: Sequence[WatchStream] | None = None,
) -> Verdict:
    """The verdict on a record, by a journal that was asked for at `asked_ms`."""
    history = _history(record, journal, asked_ms)
    profile = _profile(crowd, record.shard_count, lease_ms, quiet_since_ms)
    independent = _independently(record, journal, record.streams if streams is None else streams)
    return Verdict(
        Counter(record.acked),
        record.unanswered,
        history.rebalances,
        history.sometimes["share lost by the local deadline"],
        sum(len(stream.events) for stream in record.streams),
        [
            *check(history, profile),
            *_evicted(record, history),
            *independent,
        ],
    )


def _independently(
    record: Record, journal: dict[int, list[JournalEvent]], streams: Sequence[WatchStream]
) -> Iterator[str]:
    """What checks find that share no code with the simulator's."""
    yield from check_commits(record.exchanges)
    yield from check_holders(
        (hold.group, hold.token, partition, hold.member_id)
        for hold in record.history.holds
        for partition in hold.partitions
    )
    yield from check_watches(streams, chain.from_iterable(journal.values()))


def _profile(crowd: Crowd, shards: int, lease_ms: int, quiet_since_ms: int | None) -> Profile:
    return Profile(
        "real",
        shards=shards,
        lease_ms=lease_ms,
        late_timer_ms=5 * lease_ms,
        session_ms=(crowd.session_ms, crowd.session_ms),
        rebalance_ms=(REBALANCE_MS, REBALANCE_MS),
        churn_every_ms=0 if quiet_since_ms is not None else 1,
        quiet_ms=quiet_since_ms or 0,
    )


def _history(record: Record, journal: dict[int, list[JournalEvent]], asked_ms: int) -> History:
    """The record as far as the journal that was read can show it."""
    owners: dict[tuple[int, int], str] = {}
    calls = [_as_of(call, asked_ms) for call in record.history.calls]
    history = replace(record.history, calls=calls, epochs=[], journal={})
    for shard_id, events in journal.items():
        lines = history.journal[shard_id] = []
        for event in events:
            entry = decode_entry({name: getattr(event, name) for name in _LINE_FIELDS})
            if isinstance(entry.record, r.ShardAcquired):
                owners[shard_id, event.epoch] = entry.record.replica_id
                history.epochs.append((shard_id, event.epoch, entry.record.replica_id, event.at_ms))
            owner = owners.get((shard_id, event.epoch), "nobody")
            lines.append(Landed(event.seq, event.epoch, entry, event.at_ms, event.at_ms, owner))
    return history


def _as_of(call: Call, asked_ms: int) -> Call:
    """Answers after the journal was asked for may be in none of its lines yet: as if not answered."""
    if call.ret_ms < asked_ms:
        return call
    return Call(call.number, call.client, call.request, call.shard_id, call.sent_ms, call.floor)


def _evicted(record: Record, history: History) -> Iterator[str]:
    """Members that were expired although their client was there and never stopped heartbeating."""
    for lines in history.journal.values():
        clients: dict[str, str] = {}
        for line in lines:
            match line.entry.record:
                case r.MemberJoined(member=image) | r.MemberUpdated(member=image):
                    clients[image.member_id] = image.client_id
                case r.MemberFenced(member_id=old, new_member_id=new):
                    clients[new] = clients.get(old, "")
                case r.MemberExpired(member_id=member_id, reason=reason):
                    client = clients.get(member_id, "")
                    if line.decided_ms < record.ended_ms.get(client, line.decided_ms + 1):
                        yield f"EVICTED {line.entry.group_id}: {member_id} of {client}, at {line.decided_ms}: {reason}"


async def _read_journal(dsn: str, shard_count: int) -> dict[int, list[JournalEvent]]:
    store = SqlStore(dsn)
    await store.open(shard_count)
    try:
        return {shard_id: await _read_shard(store, shard_id) for shard_id in range(shard_count)}
    finally:
        await store.close()


async def _read_shard(store: SqlStore, shard_id: int) -> list[JournalEvent]:
    events: list[JournalEvent] = []
    while True:
        page = await store.read_events(shard_id, events[-1].seq if events else 0, _PAGE)
        events += page
        if len(page) < _PAGE:
            return events
