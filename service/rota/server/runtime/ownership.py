"""The shell of `rota.core.replica.leases`: runs its rounds against the store, and serves the shards it owns."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rota.core.group.rows import ShardImage
from rota.core.group.shard import Lost
from rota.core.replica import leases as step
from rota.core.replica.going_back import LostFact, Setback
from rota.core.replica.leases import RETRY_MS, Do, Steps
from rota.core.replica.owned_shard import NOT_OWNED, OwnedShard
from rota.core.replica.ports import Floor, Replica, SeenMembers, ShardClaim, ShardOwner, StoreUnavailable
from rota.protocol.limits import Limits
from rota.server.runtime.forwarding import Directory, Peers
from rota.server.runtime.loop import ShardLoop

logger = logging.getLogger(__name__)

FLUSH_S = 0.5
"""How long a stopping process waits for the store: parked clients want their answer within a second."""
MOST_LOST_LINES = 200
"""How many lost facts are named; the rest is counted."""


class Ownership:
    """The shards of this replica. `run()` keeps them and claims those assigned to it, until cancelled."""

    def __init__(self, loop: ShardLoop, directory: Directory, peers: Peers | None, limits: Limits) -> None:
        """`peers`: the other replicas, if the store may have some."""
        self.loop = loop
        self.leases = loop.leases
        self.directory = directory
        directory.on_setback = self.nudge
        self.store_trouble = ""
        """Why the last round on the leases failed; empty if it did not."""
        self.failing_since_ms: int | None = None
        """When the first round of those began that have failed in a row, by the monotonic clock."""
        self.setback = ""
        """That the store went back to an earlier state; empty once all shards are served again."""
        self._store = loop.store
        self._clock = loop.clock
        self._telemetry = loop.telemetry
        self._peers = peers
        self._limits = limits
        self._complete = asyncio.Event()
        self._is_nudged = False
        self._left_rounds = asyncio.Event()
        self._loading_since = 0.0
        self._to_confirm: set[OwnedShard] = set()
        """Shards of the next read of the store that confirms owners."""
        self._next_confirmation: asyncio.Task[Collection[OwnedShard]] | None = None
        self._is_confirming = asyncio.Lock()

    def nudge(self) -> None:
        """Shards may have become free: begin a round now."""
        self._is_nudged = True
        self.loop.round_due.set()

    async def run(self) -> None:
        """A few rounds a lease, and one at once when there is a reason."""
        try:
            while not self.leases.is_leaving:
                began_ms, has_failed = self._clock.monotonic_ms(), False
                try:
                    await self._carry_out(self.leases.round(self._clock.now()))
                    self.store_trouble, self.failing_since_ms = "", None
                except StoreUnavailable as error:
                    has_failed, self.store_trouble = True, str(error)
                    if self.failing_since_ms is None:
                        self.failing_since_ms = began_ms
                    self._telemetry.on_store_failed("leases")
                    logger.warning("the store does not answer", extra={"error": str(error)})
                next_ms = self.leases.next_round_ms(began_ms, self._clock.now(), has_failed=has_failed)
                await self._pause(max(0, next_ms - self._clock.monotonic_ms()))
        finally:
            self._left_rounds.set()

    async def end_rounds(self) -> None:
        """Begin no other round, and let the one under way end; a store that hangs is not waited for."""
        self.leases.is_leaving = True
        self.loop.round_due.set()
        await _at_most(FLUSH_S, self._left_rounds.wait())

    async def leave(self) -> None:
        """See `Leases.leave`. AFTER `end_rounds`."""
        await self._carry_out(self.leases.leave())

    async def wait_until_complete(self) -> None:
        """Return while every shard that is due to this replica is in memory here."""
        while not self.leases.is_complete:
            self._complete.clear()
            await self._complete.wait()

    async def flush(self) -> None:
        """Let decisions become durable; a store that hangs is not waited for."""
        await _at_most(FLUSH_S, self.loop.flush())

    # --- confirmed by the store --------------------------------------------------------------------

    async def is_owner(self, owned: OwnedShard) -> bool:
        """Whether the store said, after this call, that the shard is owned here. False if it does not answer.

        Requests that come during one read share the next.
        """
        self._to_confirm.add(owned)
        self._next_confirmation = self._next_confirmation or asyncio.create_task(self._confirm())
        return owned in await asyncio.shield(self._next_confirmation)

    async def _confirm(self) -> Collection[OwnedShard]:
        async with self._is_confirming:
            asked, self._to_confirm, self._next_confirmation = self._to_confirm, set(), None
            # A store that has gone back confirms no claim that is ahead of it.
            claims = [replace(owned.claim, last_seq=owned.durable_seq) for owned in asked]
            try:
                confirmed = await self._store.confirm(claims, self.leases.replica.replica_id)
            except StoreUnavailable:
                return ()
        for owned in asked:
            if owned.shard_id not in confirmed:
                self.loop.give_up(owned, NOT_OWNED)
        return {owned for owned in asked if owned.shard_id in confirmed}

    # --- owners ------------------------------------------------------------------------------------

    def reached_at(self, **ways: Any) -> None:
        """Ways to this replica, as `Replica` names them; before `run`, as a port is known only once it is bound."""
        self.leases.replica = replace(self.leases.replica, **ways)

    def owner_of(self, shard_id: int) -> ShardOwner:
        """The shard's owner, as far as this replica knows; an empty replica_id if the shard has none."""
        owned = self.leases.owned.get(shard_id)
        if owned is not None:
            return self._with_ways(self._owned(owned), self.leases.replica)
        peer, known = self.directory.peer_of(shard_id), self.directory.owners.get(shard_id)
        if peer is None or known is None:
            return ShardOwner(shard_id, "", "", 0, 0, reported_by=self.leases.replica.replica_id)
        return self._with_ways(known, peer)

    def owned(self) -> list[ShardOwner]:
        """Every shard that this replica serves."""
        return [self._owned(owned) for _, owned in sorted(self.leases.owned.items())]

    def _owned(self, owned: OwnedShard) -> ShardOwner:
        here, left_ms = self.leases.replica, owned.lease_until_ms - self._clock.monotonic_ms()
        left_ms = min(left_ms, self.leases.lease_ms)
        return ShardOwner(owned.shard_id, here.replica_id, here.address, owned.epoch, left_ms, owned.durable_seq)

    def _with_ways(self, owner: ShardOwner, replica: Replica) -> ShardOwner:
        """With the addresses and ports that only the registry has."""
        here = self.leases.replica
        owner = replace(owner, reported_by=here.replica_id, grpc_address=replica.grpc_address)
        if replica.address != here.address:
            return owner
        return replace(owner, worker_http_port=replica.worker_http_port, worker_grpc_port=replica.worker_grpc_port)

    # --- steps -------------------------------------------------------------------------------------

    async def _carry_out(self, steps: Steps) -> None:
        try:
            do = next(steps)
            while True:
                try:
                    answer = await self._do(do)
                except StoreUnavailable as error:
                    do = steps.throw(error)
                else:
                    do = steps.send((answer, self._clock.now()))
                self._note_completeness()
        except StopIteration:
            self._note_completeness()

    async def _do(self, do: Do) -> Any:
        store, leases = self._store, self.leases
        replica_id = leases.replica.replica_id
        match do:
            case step.ReadOwners():
                return await self.directory.look()
            case step.AskOwners(owners):
                return await self._peers.held(owners) if self._peers is not None else ()
            case step.StoreCopied(owners):
                return self._report_copy(owners)
            case step.Register():
                return await store.register(leases.replica, leases.lease_ms)
            case step.Claim():
                return await self._claim(do)
            case step.Load(claims, lease_until_ms):
                return await self._load(claims, lease_until_ms)
            case step.Serve():
                return await self._serve_all(do)
            case step.Renew(claims):
                return await store.renew(claims, replica_id, leases.lease_ms)
            case step.WentBack(setbacks):
                return self._report_setbacks(setbacks)
            case step.RaiseFloors(floors):
                return await self._raise_floors(floors)
            case step.ReportLost(facts):
                return _log_lost(facts)
            case step.RaiseGenerations(owned, floor):
                return self.loop.raise_generations(owned, floor)
            case step.GiveUp(owned, reason):
                return self.loop.give_up(owned, reason)
            case step.Close(shards, reason):
                for owned in shards:
                    self.loop.close(owned, reason)
                return await self.flush()
            case step.DropClosed():
                return self._drop_closed(do)
            case step.Release(claims, deregisters):
                return await self._release(claims, deregisters=deregisters)
            case step.NotifyPeers():
                return await self._peers.notify_released(self.directory.peers) if self._peers is not None else None

    def _drop_closed(self, do: step.DropClosed) -> None:
        owned = do.owned
        if not owned.is_dropped:
            self._telemetry.on_shard_dropped(owned.shard_id, owned.epoch, "handed over")
            self.loop.drop(owned, do.reason, do.code, undecided=do.undecided)

    async def _release(self, claims: Sequence[ShardClaim], *, deregisters: bool) -> None:
        replica_id = self.leases.replica.replica_id
        if not deregisters:
            await self._store.release(claims, replica_id)
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._store.deregister(replica_id))
                both.create_task(self._store.release(claims, replica_id))
        except* StoreUnavailable as errors:
            logger.warning("the leases could not be released", extra={"error": str(errors.exceptions[0])})

    async def _load(self, claims: Sequence[ShardClaim], lease_until_ms: int) -> list[ShardImage | None]:
        shard_ids = [claim.shard_id for claim in claims]
        self._loading_since = time.perf_counter()
        try:
            async with asyncio.timeout((lease_until_ms - self._clock.monotonic_ms()) / 1000):
                return await self._load_readable(claims)
        except (StoreUnavailable, TimeoutError) as error:
            logger.warning("shards could not be loaded", extra={"shard_ids": shard_ids, "error": repr(error)})
            raise StoreUnavailable(str(error)) from error

    async def _load_readable(self, claims: Sequence[ShardClaim]) -> list[ShardImage | None]:
        """All at once, or one by one if one of them cannot be read: None for that one."""
        try:
            return list(await self._store.load([claim.shard_id for claim in claims]))
        except StoreUnavailable:
            raise
        except Exception as error:
            if len(claims) > 1:
                return [image for claim in claims for image in await self._load_readable([claim])]
            self._report_unreadable(claims[0], error)
            return [None]

    def _report_unreadable(self, claim: ShardClaim, error: Exception) -> None:
        """A shard that cannot be loaded costs its own groups, and not this process and then the next owner's."""
        logger.error("a shard cannot be loaded", exc_info=error, extra={"shard_id": claim.shard_id})
        self._telemetry.on_shard_dropped(claim.shard_id, claim.epoch, f"a broken invariant: {error!r}")

    async def _claim(self, do: step.Claim) -> list[ShardClaim]:
        leases, here = self.leases, self.leases.replica
        return await self._store.claim(
            do.shard_ids,
            here.replica_id,
            here.address,
            leases.lease_ms,
            steal=leases.steal,
            known_epochs=do.known_epochs,
        )

    def _report_copy(self, owners: Sequence[ShardOwner]) -> None:
        self._telemetry.on_store_copied(len(owners))
        logger.error(
            "this store is a copy of another one that is in use: its shards are not claimed",
            extra={
                "shard_ids": [owner.shard_id for owner in owners],
                "owners": sorted({f"{owner.replica_id} at {owner.peer_address}" for owner in owners}),
                "hint": "stop these replicas, or give the copy an identity of its own with: rota db restored",
            },
        )

    def _report_setbacks(self, setbacks: Sequence[Setback]) -> None:
        self.setback = f"the store went back to an earlier state: {len(setbacks)} shards have lost lines or commits"
        self._telemetry.on_store_went_back(setbacks)
        _log_setbacks(setbacks)

    async def _raise_floors(self, floors: Mapping[int, Floor]) -> None:
        await self._store.raise_floors(floors)
        for shard_id, floor in floors.items():
            logger.warning(
                "floors raised",
                extra={"shard_id": shard_id, "generation_floor": floor.generation_id, "epoch_floor": floor.epoch},
            )

    async def _serve_all(self, do: step.Serve) -> None:
        sessions = self.loop.sessions
        # Read last: until now, others may have recorded heartbeats for a shard without an owner.
        reads = [sessions.read(claim.shard_id) for claim, _ in do.loaded] if sessions else []
        seen: Sequence[SeenMembers | None] = await asyncio.gather(*reads) if reads else [None] * len(do.loaded)
        if self.leases.is_leaving:  # The reads took longer than this replica waits for its last round.
            await self._release([claim for claim, _ in do.loaded], deregisters=False)
            return
        for (claim, image), of_shard in zip(do.loaded, seen, strict=True):
            self._serve(claim, image, do.lease_until_ms, of_shard, do.lost.get(claim.shard_id))

    def _serve(
        self, claim: ShardClaim, image: ShardImage, lease_until_ms: int, seen: SeenMembers | None, lost: Lost | None
    ) -> None:
        try:
            owned, loaded = OwnedShard.load(
                claim,
                image,
                self._limits,
                self._clock.now(),
                replica_id=self.leases.replica.replica_id,
                lease_until_ms=lease_until_ms,
                seen=seen,
                lost=lost,
            )
        except Exception as error:
            self._report_unreadable(claim, error)
            return
        self.loop.serve(owned, loaded)
        self.directory.note_arrival()
        self._note_completeness()
        seconds = time.perf_counter() - self._loading_since
        self._telemetry.on_shard_loaded(claim.shard_id, claim.epoch, len(owned.shard.groups), seconds)

    def _note_completeness(self) -> None:
        if self.leases.is_complete:
            self._complete.set()
            if not self.directory.memory.setbacks:
                self.setback = ""

    async def _pause(self, pause_ms: int) -> None:
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await self.loop.round_due.wait()
                if not self._is_nudged and not self.leases.is_complete:
                    # A store that keeps failing is asked again after a breath, not in a tight loop.
                    await asyncio.sleep(RETRY_MS / 1_000)
        except TimeoutError:
            pass
        self._is_nudged = False
        self.loop.round_due.clear()


async def _at_most(seconds: float, waiting: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await waiting
    except TimeoutError:
        pass


def _log_setbacks(setbacks: Sequence[Setback]) -> None:
    """One line for each shard: what this replica knew of it, and what the store says now."""
    for setback in setbacks:
        known, found = setback.known, setback.found
        logger.error(
            "the store went back to an earlier state",
            extra={
                "shard_id": setback.shard_id,
                "lost": "commits of users' own transactions" if known == found else "lines of the journal",
                "known_epoch": known.epoch,
                "known_owner": known.replica_id,
                "known_seq": known.last_seq,
                "found_epoch": found.epoch,
                "found_owner": found.replica_id,
                "found_seq": found.last_seq,
            },
        )


def _log_lost(facts: Sequence[LostFact]) -> None:
    """One line for each lost generation and each lost commit. Some may never have been acknowledged."""
    for fact in facts[:MOST_LOST_LINES]:
        logger.warning("the store has lost a fact", extra=fact._asdict())
    if len(facts) > MOST_LOST_LINES:
        logger.warning("the store has lost more facts", extra={"facts": len(facts) - MOST_LOST_LINES})
