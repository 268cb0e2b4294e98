"""The shared liveness store as a replica meets it: away, slow, flushed, or back with an older copy."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

from rota.group.sessions import MemberName
from rota.liveness.memory import MemoryLiveness
from rota.replica.ports import Heard, LivenessUnavailable, ShardNews

if TYPE_CHECKING:
    from rota.testing.runtimes.replica import RuntimeReplica
    from rota.testing.runtimes.world import RuntimeWorld

Found = TypeVar("Found")

TIMEOUT_MS = 200
"""As in `RedisLiveness`."""


class LivenessServer(MemoryLiveness):
    """What survives the replicas. `faults_ms` are the times at which it lost or withheld something."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        super().__init__(clock_ms)
        self.slow_until_ms = 0
        self.away_until_ms = 0
        self.faults_ms: list[tuple[int, int]] = []
        """Spans of time in which it was not to be relied on."""
        self._copy = self._contents()

    def has_failed(self, from_ms: int, to_ms: int) -> bool:
        """Was there a moment in this span of time at which it was not to be relied on?"""
        return any(began_ms <= to_ms and ended_ms >= from_ms for began_ms, ended_ms in self.faults_ms)

    def keep_copy(self) -> None:
        """A standby is brought up to date."""
        self._copy = self._contents()

    def go_back(self) -> None:
        """A standby that was behind takes over."""
        self._heard, self._told = deepcopy(self._copy)

    def _contents(self) -> tuple[dict[int, dict[MemberName, int]], dict[int, int]]:
        return deepcopy((self._heard, self._told))


class LivenessOfReplica:
    """`Liveness` for one replica: each method is one message to the server and one back."""

    def __init__(self, world: RuntimeWorld, replica: RuntimeReplica, server: LivenessServer) -> None:
        self._world = world
        self._replica = replica
        self._server = server

    async def ping(self) -> None:
        await self._ask(self._server.ping)

    async def tell(self, news: Sequence[ShardNews]) -> list[int]:
        return await self._ask(lambda: self._server.tell(news))

    async def read(self, shard_id: int) -> Heard:
        return await self._ask(lambda: self._server.read(shard_id))

    async def heard_ms_ago(self, members: Sequence[tuple[int, MemberName]]) -> list[int | None]:
        return await self._ask(lambda: self._server.heard_ms_ago(members))

    async def record(self, shard_id: int, members: Sequence[MemberName]) -> list[bool]:
        return await self._ask(lambda: self._server.record(shard_id, members))

    async def close(self) -> None:
        """There is no connection to close."""

    async def _ask(self, command: Callable[[], Coroutine[Any, Any, Found]]) -> Found:
        world, replica = self._world, self._replica
        outcome = replica.loop.create_future()
        now_ms, rng = world.scheduler.now_ms, world.rng
        is_slow = now_ms < self._server.slow_until_ms
        there_ms = 1 + int(rng.random() * (300 if is_slow else 2))

        def run() -> None:
            if world.scheduler.now_ms >= self._server.away_until_ms:
                answer = _finished(command())
                world.scheduler.after(1 + int(rng.random() * 2), replica, settle, (answer,))

        def settle(answer: tuple[Found] | None) -> None:
            if not outcome.done():
                outcome.set_result(answer)

        world.scheduler.after(there_ms, None, run)
        world.scheduler.after(TIMEOUT_MS, replica, settle, None)
        answer: tuple[Found] | None = await outcome
        if answer is None:
            world.sometimes("the liveness store did not answer")
            self._server.faults_ms.append((now_ms, world.scheduler.now_ms))
            raise LivenessUnavailable(f"no answer within {TIMEOUT_MS} ms")
        return answer[0]


def _finished(command: Coroutine[Any, Any, Found]) -> Found:
    """The result of a method of the twin, none of which ever waits."""
    try:
        command.send(None)
    except StopIteration as ended:
        found: Found = ended.value
        return found
    raise AssertionError("the liveness twin waits")
