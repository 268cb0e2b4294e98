"""Which shards are in memory here: registering, claiming, loading, keeping leases, handing over, letting go.

Every replica registers in the store and computes from the same list who should own what (`placement.py`). A replica
takes what should be its own and nobody holds, and hands over what should be another's. Only the store's clock judges a
lease; this side counts on its own monotonic clock from before it asked, so it stops answering first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from rota.group.result import Timer
from rota.group.rows import ShardImage
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.runtime.clock import Clock
from rota.runtime.committer import Committer
from rota.runtime.directory import Directory
from rota.runtime.host import ShardHost
from rota.runtime.placement import shards_of
from rota.runtime.ports import (
    JournalEvent,
    Replica,
    ShardClaim,
    ShardStore,
    StoreUnavailable,
)
from rota.runtime.sessions import SharedSessions
from rota.runtime.telemetry import Telemetry
from rota.runtime.timer_task import TimerTask

logger = logging.getLogger(__name__)

LOADING_AT_ONCE = 16
HANDING_OVER_AT_ONCE = 8
"""A new replica gets its share in small portions, so that nobody's clients all come back at once."""
RETRY_S = 0.02
SLACK_MS = 5
FLUSH_S = 0.5
"""How long a stopping process waits for the store: parked clients want their answer within a second."""

Notify = Callable[[Sequence[Replica]], Awaitable[None]]
"""Tells these replicas to look: shards have become free, or somebody has come."""


class Ownership:
    """The shards of this replica. `run()` keeps them and takes what is due to it, until cancelled."""

    def __init__(
        self,
        store: ShardStore,
        clock: Clock,
        limits: Limits,
        telemetry: Telemetry,
        timers: TimerTask,
        *,
        replica: Replica,
        shard_count: int,
        lease_ms: int,
        steal: bool,
        on_events: Callable[[int, list[JournalEvent]], None],
        notify: Notify | None = None,
        sessions: SharedSessions | None = None,
        assign: Callable[[ShardHost, Timer], None] | None = None,
    ) -> None:
        self.hosts: dict[int, ShardHost] = {}
        self.directory = Directory(store, clock, replica.replica_id, shard_count, self.hosts)
        self.committer = Committer(store, telemetry, self.give_up)
        self.complete = asyncio.Event()
        """Set while every shard that is due to this replica is in memory here."""
        self.is_placed = False
        """Is it known which shards are due to this replica? None are, where it is one too many."""
        self._due: list[int] = []
        self._store = store
        self._clock = clock
        self._limits = limits
        self._telemetry = telemetry
        self._timers = timers
        self.replica = replica
        self._shard_count = shard_count
        self._lease_ms = lease_ms
        self._steal = steal
        self._on_events = on_events
        self._notify = notify
        self._sessions = sessions
        self._assign = assign
        self._wake = asyncio.Event()
        self._is_nudged = False
        self._is_leaving = False
        self._left_rounds = asyncio.Event()
        self._renewed_ms = 0

    def give_up(self, host: ShardHost, reason: str) -> None:
        """Stop answering for a shard whose memory cannot be trusted; it is claimed and loaded again."""
        if self._remove(host):
            logger.warning("shard dropped", extra={"shard_id": host.shard_id, "reason": reason})
            self._telemetry.on_shard_dropped(host.shard_id, host.claim.epoch, reason)
        host.drop(reason)
        self._wake.set()

    def nudge(self) -> None:
        """Shards may have become free: look now."""
        self._is_nudged = True
        self._wake.set()

    async def run(self) -> None:
        """Register, renew, hand over and acquire: a few times a lease, and at once when there is a reason."""
        try:
            while not self._is_leaving:
                # From begin to begin: a store that is slow must not stretch what is left between two renewals.
                next_ms = self._clock.monotonic_ms() + self._lease_ms // 3
                try:
                    await self._round()
                    free_ms = self.directory.next_free_ms()
                    next_ms = next_ms if free_ms is None else min(next_ms, free_ms + SLACK_MS)
                except StoreUnavailable as error:
                    self._telemetry.on_store_failed("leases")
                    logger.warning("the store does not answer", extra={"error": str(error)})
                    next_ms = min(next_ms, self._clock.monotonic_ms() + 200)
                await self._pause(max(0, next_ms - self._clock.monotonic_ms()))
        finally:
            self._left_rounds.set()

    async def stop_rounds(self) -> None:
        """Keep what there is and take nothing more; a store that hangs is not waited for."""
        self._is_leaving = True
        self._wake.set()
        await _at_most(FLUSH_S, self._left_rounds.wait())

    async def release_all(self, told: str) -> None:
        """Let go of everything at once, so that nobody has to wait for a lease to run out. Who waits is `told` so.

        A store that does not answer is not told: the leases then run out by themselves.
        """
        hosts = list(self.hosts.values())
        await self._close(hosts, "the replica stops", told)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._store.deregister(self.replica.replica_id))
                both.create_task(self._store.release([host.claim for host in hosts], self.replica.replica_id))
        except* StoreUnavailable as errors:
            logger.warning("the leases could not be released", extra={"error": str(errors.exceptions[0])})
        if self._notify is not None:
            await self._notify(self.directory.peers)

    def due(self) -> int:
        """How many shards this replica should hold."""
        return len(self._due)

    def is_all(self, answered: Collection[int]) -> bool:
        """Whether these shards are all that this replica has to tell of. Nobody knows before it is placed."""
        return self.is_placed and all(shard_id in answered for shard_id in self._due)

    # --- one round ---------------------------------------------------------------------------------

    async def _round(self) -> None:
        """What is free comes first: somebody waits for it. It may be free because of who is not up any more.

        A registration ends before its leases: whose leases were seen to be over is not up when it is looked at who is.
        """
        await self.directory.look()
        await self._acquire()
        await self._survey()
        await self._acquire()
        await self._renew()
        await self._hand_over()

    async def _survey(self) -> None:
        """Who is up, and what should therefore be ours."""
        # A registration lives as long as a lease: who cannot renew one cannot renew the other. It is renewed before
        # the leases and ends before them, so that whoever sees a dead one's leases end knows already who takes over.
        replicas = await self._store.register(self.replica, self._lease_ms)
        if self._steal:
            # Whoever else is registered is gone: this process alone can have the store open.
            replicas = [self.replica]
        self.directory.peers = [replica for replica in replicas if replica != self.replica]
        self._due = shards_of(self.replica.replica_id, (r.replica_id for r in replicas), self._shard_count)
        is_new, self.is_placed = not self.is_placed, True
        self._note_completeness()
        if is_new and self._notify is not None:
            # Those who hold what is due to us would otherwise see us only when their next round is due.
            await self._notify(self.directory.peers)

    async def _renew(self) -> None:
        hosts = dict(self.hosts)
        if not hosts:
            return
        sent_ms = self._renewed_ms = self._clock.monotonic_ms()
        kept = set(await self._store.renew([h.claim for h in hosts.values()], self.replica.replica_id, self._lease_ms))
        for shard_id, host in hosts.items():
            # A host that was dropped meanwhile stays dropped: this answer is about its old claim (R2).
            if shard_id not in kept:
                self.give_up(host, "the lease went to somebody else")
            elif not host.may_answer():
                # Nobody could heartbeat in the meantime, so every session has to start afresh.
                self.give_up(host, "the lease had run out before it was renewed")
            else:
                host.lease_until_ms = sent_ms + self._lease_ms

    async def _hand_over(self) -> None:
        """Let go of some of what is due to another replica that is up."""
        due = set(self._due)
        moving = [host for shard_id, host in self.hosts.items() if shard_id not in due][:HANDING_OVER_AT_ONCE]
        if not moving or self._is_leaving:
            return
        reason = "the shard moves to another replica"
        await self._close(moving, reason, reason, ErrorCode.NOT_COORDINATOR)
        await self._store.release([host.claim for host in moving], self.replica.replica_id)
        if self._notify is not None:
            await self._notify(self.directory.peers)
        self._wake.set()

    async def _acquire(self) -> None:
        missing = [shard_id for shard_id in self._due if shard_id not in self.hosts]
        free = [shard_id for shard_id in missing if self._steal or self.directory.is_free(shard_id)]
        for some in _chunks(free, LOADING_AT_ONCE):
            if self._is_leaving:
                return
            await self._claim_and_load(some)
            if self._clock.monotonic_ms() >= self._renewed_ms + self._lease_ms // 3:
                # Loading everything may take longer than the leases that there are.
                await self._renew()

    async def _claim_and_load(self, shard_ids: Sequence[int]) -> None:
        sent_ms = self._clock.monotonic_ms()
        claims = await self._store.claim(
            shard_ids, self.replica.replica_id, self.replica.address, self._lease_ms, steal=self._steal
        )
        if claims:
            await self._load(claims, sent_ms + self._lease_ms)

    async def flush(self) -> None:
        """Let what is decided become durable; a store that hangs is not waited for."""
        await _at_most(FLUSH_S, self.committer.flush())

    # --- steps -------------------------------------------------------------------------------------

    async def _close(
        self, hosts: list[ShardHost], reason: str, told: str, code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE
    ) -> None:
        """Decide nothing more in these shards, and have the last decisions durable before they are dropped."""
        for host in hosts:
            host.close(reason)
        await self.flush()
        for host in hosts:
            self._remove(host)
            self._telemetry.on_shard_dropped(host.shard_id, host.claim.epoch, "handed over")
            # What was decided is durable by now, unless the store hangs; what is parked has decided nothing.
            undecided = host.is_settled()
            host.drop(told, code if undecided else ErrorCode.COORDINATOR_NOT_AVAILABLE, undecided=undecided)

    async def _load(self, claims: Sequence[ShardClaim], lease_until_ms: int) -> None:
        started = time.perf_counter()
        shard_ids = [claim.shard_id for claim in claims]
        try:
            # Longer than the lease it is of no use, and the leases of the other shards are not renewed meanwhile.
            async with asyncio.timeout((lease_until_ms - self._clock.monotonic_ms()) / 1000):
                images = await self._store.load(shard_ids)
        except (StoreUnavailable, TimeoutError) as error:
            logger.warning("shards could not be loaded", extra={"shard_ids": shard_ids, "error": repr(error)})
            return
        async with asyncio.TaskGroup() as group:
            for claim, image in zip(claims, images, strict=True):
                group.create_task(self._serve(claim, image, lease_until_ms, started))

    async def _serve(self, claim: ShardClaim, image: ShardImage, lease_until_ms: int, started: float) -> None:
        # Read last: until now, others may have recorded heartbeats for a shard without an owner.
        heard = await self._sessions.read(claim.shard_id) if self._sessions else None
        host = ShardHost(
            claim,
            image,
            self._limits,
            self._clock,
            replica_id=self.replica.replica_id,
            lease_until_ms=lease_until_ms,
            set_timer=self._timers.set,
            want_commit=self.committer.want,
            give_up=self.give_up,
            on_events=self._on_events,
            on_expired=self._telemetry.on_expired,
            ask=self._sessions.ask if self._sessions else None,
            assign=self._assign,
            heard=heard,
        )
        self.hosts[claim.shard_id] = host
        self.directory.note_arrival()
        self._note_completeness()
        seconds = time.perf_counter() - started
        self._telemetry.on_shard_loaded(claim.shard_id, claim.epoch, len(host.shard.groups), seconds)

    def _remove(self, host: ShardHost) -> bool:
        if self.hosts.get(host.shard_id) is not host:
            return False
        del self.hosts[host.shard_id]
        self._note_completeness()
        return True

    def _note_completeness(self) -> None:
        if self.is_placed and all(shard_id in self.hosts for shard_id in self._due):
            self.complete.set()
        else:
            self.complete.clear()

    async def _pause(self, pause_ms: int) -> None:
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await self._wake.wait()
                if not self._is_nudged and not self.complete.is_set():
                    # A store that keeps failing is asked again after a breath, not in a tight loop.
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            pass
        self._is_nudged = False
        self._wake.clear()


async def _at_most(seconds: float, waiting: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await waiting
    except TimeoutError:
        pass


def _chunks(shard_ids: list[int], size: int) -> Iterable[list[int]]:
    return (shard_ids[start : start + size] for start in range(0, len(shard_ids), size))
