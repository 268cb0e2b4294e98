"""A loop that is late finds timers due before it reads its sockets: what was received in time counts all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import Heartbeat, JoinReply, SyncGroup
from rota.server.runtime.clock import STALL_MS
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryStore
from tests.client.virtual_time import LoopClock, VirtualTimeLoop, in_virtual_time, pause
from tests.runtime.conftest import a_join

SESSION_S = 10.0
HOPS = 6
"""Turns of the loop from the poll that finds a message to its handler, as in gRPC."""


class Sockets:
    """What the kernel has received: each message is found by the first poll after it arrived."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        assert isinstance(self.loop, VirtualTimeLoop)
        self.loop.between_turns = self._poll
        self._arriving: list[tuple[float, Callable[[], Any]]] = []

    def arrives(self, at_s: float, handle: Callable[[], Any]) -> None:
        self._arriving.append((at_s, handle))

    def _poll(self) -> bool:
        found = [handle for at_s, handle in self._arriving if at_s <= self.loop.time()]
        self._arriving = [each for each in self._arriving if each[0] > self.loop.time()]
        for handle in found:
            self._hop(HOPS, handle)
        return bool(found)

    def _hop(self, hops: int, handle: Callable[[], Any]) -> None:
        self.loop.call_soon(handle) if not hops else self.loop.call_soon(self._hop, hops - 1, handle)


async def a_member(coordinator: LocalCoordinator) -> Heartbeat:
    join = a_join(session_timeout_ms=int(SESSION_S * 1_000))
    joined = (await coordinator.call(join)).reply
    assert isinstance(joined, JoinReply)
    named = ("default", "g", joined.member_id, joined.generation_id)
    await coordinator.call(SyncGroup(*named, assignments=((joined.member_id, b""),)))
    return Heartbeat(*named)


async def answers_after(late_s: float, *, arrives: bool) -> ErrorCode:
    """A member's state after its session, in the last second of which the loop was late by some callback."""
    clock = LoopClock()
    store = MemoryStore(clock.monotonic_ms)
    await store.open(2)
    limits = Limits(initial_rebalance_delay_ms=0)
    async with LocalCoordinator(store, shard_count=2, limits=limits, clock=clock, lease_ms=60_000) as coordinator:
        await coordinator.wait_until_ready()
        beat, sockets = await a_member(coordinator), Sockets()
        assert coordinator.try_heartbeat(beat) is not None
        loop, ends_s = asyncio.get_running_loop(), clock.now_ms() / 1_000 + SESSION_S
        loop.call_at(ends_s - 1.0, pause, 1.0 + late_s)
        if arrives:
            sockets.arrives(ends_s - 0.5, lambda: coordinator.try_heartbeat(beat))
        await asyncio.sleep(SESSION_S + late_s + 0.3)
        return (await coordinator.call(beat)).reply.error


@in_virtual_time
async def test_a_heartbeat_that_lay_unread_in_a_late_loop_counts() -> None:
    assert await answers_after(STALL_MS / 2_000, arrives=True) is ErrorCode.NONE


@in_virtual_time
async def test_a_silent_member_of_a_late_loop_is_removed_all_the_same() -> None:
    assert await answers_after(STALL_MS / 2_000, arrives=False) is ErrorCode.UNKNOWN_MEMBER_ID
