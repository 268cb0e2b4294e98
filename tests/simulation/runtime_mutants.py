"""Planted bugs in the runtime: how a replica renews, hands over, stops, and reads answers of a wrong form."""

from __future__ import annotations

import asyncio
from typing import Any

from rota.core.replica.leases import Leases
from rota.core.replica.owned_shard import OwnedShard
from rota.core.replica.ports import LivenessUnavailable, StoreUnavailable
from rota.server.runtime.loop import ShardLoop
from rota.server.runtime.ownership import Ownership
from rota.server.runtime.sessions import SharedSessions
from tests.simulation.registry import Patch, mutant


@mutant
def a_renewal_counts_from_the_answer_and_never_gives_up(patch: Patch) -> None:
    """S15: a renewal counts from its answer, and a lease that the store no longer has is kept."""

    def renewed(self: Any, sent: Any, _kept: Any, _sent_ms: int, now: Any) -> Any:
        for owned in sent.values():
            owned.lease_until_ms = now.monotonic_ms + self.lease_ms
        return []

    patch(Leases, "_renewed", renewed)


@mutant
def an_embedded_store_has_leases_that_end(patch: Patch) -> None:
    """L13: the only process of an embedded store loses its shards while the store is slow."""
    former = Leases._renew

    def install(self: Any, owned: Any) -> None:
        self.owned[owned.shard_id] = owned
        self.known.memory.note_served(owned.shard_id)

    def renew(self: Any, now: Any) -> Any:
        steal, self.steal = self.steal, False
        try:
            return (yield from former(self, now))
        finally:
            self.steal = steal

    patch(Leases, "install", install)
    patch(Leases, "_renew", renew)


@mutant
def a_hand_over_does_not_flush(patch: Patch) -> None:
    """L10: a replica lets go of a shard with decisions that the store would have taken."""

    async def flush(_self: Any) -> None:
        """The decisions under way are not waited for."""

    patch(Ownership, "flush", flush)


@mutant
def a_garbled_answer_of_the_liveness_store_ends_the_process(patch: Patch) -> None:
    """crash, L9: an answer that cannot be read ends a task of the runtime."""
    original = SharedSessions._failed

    def failed(self: Any, operation: str, error: Exception) -> None:
        if not isinstance(error, LivenessUnavailable):
            raise error
        original(self, operation, error)

    patch(SharedSessions, "_failed", failed)


@mutant
def a_cancelled_call_stays_parked(patch: Patch) -> None:
    """L6, L7, L9: the call of a client that has hung up proves that its member lives."""
    patch(ShardLoop, "cancel", lambda self, call: None)


@mutant
def stopping_waits_for_a_store_that_hangs(patch: Patch) -> None:
    """crash, L9: a replica does not stop in time."""

    async def flush(self: Any) -> None:
        await self.loop.flush()
        await asyncio.sleep(7)

    patch(Ownership, "flush", flush)


@mutant
def a_closed_shard_still_decides(patch: Patch) -> None:
    """S15, D1, S13: a shard takes requests after its last line."""
    former = OwnedShard.close

    def close(self: Any, reason: str, now: Any) -> Any:
        ready = former(self, reason, now)
        self.is_closed = False
        return ready

    patch(OwnedShard, "close", close)


@mutant
def an_unreachable_store_ends_the_rounds(patch: Patch) -> None:
    """crash, L9: a store that is away for a moment ends the task that renews the leases."""
    former = Ownership._carry_out

    async def carry_out(self: Any, steps: Any) -> None:
        try:
            await former(self, steps)
        except StoreUnavailable as error:
            raise RuntimeError("the store is away") from error

    patch(Ownership, "_carry_out", carry_out)
