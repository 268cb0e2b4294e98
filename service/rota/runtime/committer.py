"""The shell of `rota.replica.group_commit`: appends to the store, one transaction at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from itertools import groupby

from rota.group.journal import payload_of, reason_of
from rota.observability import tracing
from rota.replica.group_commit import Append, GroupCommit, Landed, ReadSideCommits
from rota.replica.owned_shard import Batch, OwnedShard
from rota.replica.ports import JournalEvent, ShardBatch, ShardStore, StoreUnavailable
from rota.runtime.clock import Clock
from rota.runtime.host import ShardHost
from rota.runtime.telemetry import Telemetry


class Committer:
    """Writes what the shards have decided. Run `run()` as a task that its creator awaits."""

    def __init__(
        self, store: ShardStore, clock: Clock, telemetry: Telemetry, give_up: Callable[[ShardHost, str], None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._telemetry = telemetry
        self._give_up = give_up
        self._group: GroupCommit[asyncio.Future[bool]] = GroupCommit()
        self._hosts: dict[OwnedShard, ShardHost] = {}
        """Of the shards that wait, or are under way."""
        self._ended = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def want(self, host: ShardHost) -> None:
        """The host has something to write."""
        if self._group.want(host.owned):
            self._waits(host)

    async def take_in(self, host: ShardHost) -> bool:
        """Return once the shard knows what users' own transactions have committed until now.

        By then, what it had decided before this call is durable, too. False where the store does not answer.
        """
        if self._ended:
            return False
        known: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._group.ask(host.owned, known)
        self._waits(host)
        return await known

    async def flush(self) -> None:
        """Wait until nothing is waiting to be written."""
        await self._idle.wait()

    async def run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while (to_do := self._group.next()) is not None:
                    match to_do:
                        case Append():
                            await self._append(to_do)
                        case ReadSideCommits():
                            await self._read_side_commits(to_do)
                self._hosts.clear()
                self._idle.set()
        finally:
            self._ended = True
            _answer(self._group.end(), known=False)

    def _waits(self, host: ShardHost) -> None:
        self._hosts[host.owned] = host
        self._idle.clear()
        self._wake.set()

    async def _append(self, to_do: Append) -> None:
        batches = [_encoded(batch) for batch in to_do.batches.values()]
        hosts = [self._hosts[owned] for owned in to_do.batches]
        started = time.perf_counter()
        try:
            refused = await self._store_batches(hosts, batches)
        except StoreUnavailable as error:
            self._telemetry.on_store_failed("commit")
            self._carry_out(self._group.outcome_unknown(str(error)), {})
            return
        seconds = time.perf_counter() - started
        landed = self._group.landed(refused, self._clock.now())
        self._carry_out(landed, dict(zip(to_do.batches, batches, strict=True)))
        # Behind what has just been pushed.
        events = sum(len(batch.events) for batch in batches)
        asyncio.get_running_loop().call_soon(self._telemetry.on_commit, len(batches), events, seconds)

    def _carry_out(self, landed: Landed, batches: dict[OwnedShard, ShardBatch]) -> None:
        for owned, reason in landed.lost.items():
            self._give_up(self._hosts[owned], reason)
        for owned, ready in landed.committed.items():
            if not owned.is_dropped:
                self._hosts[owned].committed(batches[owned], ready)

    async def _store_batches(self, hosts: Iterable[ShardHost], batches: list[ShardBatch]) -> Collection[int]:
        """The shards that were refused. One span, linked to the calls that this makes durable."""
        spans = tracing.spans
        if spans is None:
            return set(await self._store.append(batches))
        links = [link for host in hosts for link in host.take_links()]
        with spans.within("commit", tracing.Kind.CLIENT, links=links) as span:
            span.note("rota.shards", len(batches))
            span.note("rota.events", sum(len(batch.events) for batch in batches))
            refused = set(await self._store.append(batches))
            if refused:
                span.failed("the shard belongs to another replica, or the store went back")
            return refused

    async def _read_side_commits(self, to_do: ReadSideCommits) -> None:
        hosts = {owned.shard_id: self._hosts[owned] for owned in to_do.shards}
        known = False
        try:
            commits = await self._store.side_commits(sorted(hosts))
            for shard_id, found in groupby(commits, key=lambda commit: commit.shard_id):
                hosts[shard_id].take_in(list(found))
            known = True
        except StoreUnavailable:
            pass
        finally:
            _answer(self._group.side_commits_read(), known=known)


def _encoded(batch: Batch) -> ShardBatch:
    """A batch as the store takes it, its entries as journal lines."""
    events = [
        JournalEvent(
            seq,
            at_ms,
            namespace,
            group_id,
            generation_id,
            record.kind,
            reason_of(record),
            payload_of(record),
            batch.epoch,
        )
        for seq, (namespace, group_id, generation_id, at_ms, record) in enumerate(batch.entries, batch.first_seq)
    ]
    return ShardBatch(batch.shard_id, batch.epoch, batch.first_seq, tuple(events), batch.rows, batch.replica_id)


def _answer(waiters: Iterable[asyncio.Future[bool]], *, known: bool) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(known)
