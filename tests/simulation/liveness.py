"""The simulated liveness store: slow, away, flushed, or back with an older copy; and a replica's way to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

from rota.core.group.sessions import MemberName
from rota.core.replica.ports import LivenessUnavailable, SeenMembers, ShardNews
from rota.server.liveness.memory import MemoryLiveness
from rota.server.runtime.sessions import AWAY_MS
from rota.testing.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.replica import SimulatedReplica
    from tests.simulation.world import World

Found = TypeVar("Found")

TIMEOUT_MS = 200
"""As in `RedisLiveness`."""


class LivenessServer(MemoryLiveness):
    """What survives the replicas. `faults_ms` are the times at which it lost or withheld something."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda: world.scheduler.now_ms)
        self.world = world
        self.slow_until_ms = 0
        self.away_until_ms = 0
        self.faults_ms: list[tuple[int, int]] = []
        """Spans of time in which it was not to be relied on."""
        self.published_ms: dict[int, list[int]] = defaultdict(list)
        """When the owner of each shard published."""
        self._copy = self._contents()
        if world.wrong_forms.is_drawn:
            world.scheduler.after(world.wrong_forms.draws.randrange(4_000), None, self._spoil)

    def submit(
        self,
        process: Process,
        command: Callable[[], Coroutine[Any, Any, Found]],
        done: Callable[[tuple[Found] | tuple[Exception] | None], None],
    ) -> None:
        """One message to the server and one back; `done` gets the answer, an exception if the client cannot read it,
        and None after the timeout: the first one counts.
        """
        world, rng = self.world, self.world.rng
        there_ms = 1 + int(rng.random() * (300 if world.scheduler.now_ms < self.slow_until_ms else 2))

        def run() -> None:
            if world.scheduler.now_ms >= self.away_until_ms:
                answer = _finished(command())
                is_wrong = world.wrong_forms.has_next("the liveness store")
                found = (ValueError("not what a replica has written"),) if is_wrong else (answer,)
                world.scheduler.after(1 + int(rng.random() * 2), process, done, found)

        world.scheduler.after(there_ms, None, run)
        world.scheduler.after(TIMEOUT_MS, process, done, None)

    async def publish(self, news: Sequence[ShardNews]) -> list[int]:
        for each in news:
            self.published_ms[each.shard_id].append(self.world.scheduler.now_ms)
        return await super().publish(news)

    def _spoil(self) -> None:
        """Another program overwrites the key of a shard; later, that is removed."""
        shard_id, for_ms = self.world.wrong_forms.draws.randrange(self.world.profile.shards), 2_000
        now_ms = self.world.scheduler.now_ms
        self.world.sometimes("another program overwrites a key of the liveness store")
        self.spoiled.add(shard_id)
        self.faults_ms.append((now_ms, now_ms + for_ms + AWAY_MS))
        self.world.scheduler.after(for_ms, None, self.spoiled.clear)

    def has_failed(self, from_ms: int, to_ms: int) -> bool:
        """Was there a moment in this span of time at which it was not to be relied on?"""
        return any(began_ms <= to_ms and ended_ms >= from_ms for began_ms, ended_ms in self.faults_ms)

    def keep_copy(self) -> None:
        """A standby is brought up to date."""
        self._copy = self._contents()

    def go_back(self) -> None:
        """A standby that was behind takes over."""
        self._seen, self._published = deepcopy(self._copy)

    def _contents(self) -> tuple[dict[int, dict[MemberName, int]], dict[int, int]]:
        return deepcopy((self._seen, self._published))


def _finished(command: Coroutine[Any, Any, Found]) -> Found:
    """The result of a method of the twin, none of which ever waits."""
    try:
        command.send(None)
    except StopIteration as ended:
        found: Found = ended.value
        return found
    raise AssertionError("the liveness twin waits")


class LivenessOfReplica:
    """`Liveness` for one replica: each method is one message to the server and one back."""

    def __init__(self, replica: SimulatedReplica, server: LivenessServer) -> None:
        self._replica = replica
        self._server = server

    async def ping(self) -> None:
        await self._ask(self._server.ping)

    async def publish(self, news: Sequence[ShardNews]) -> list[int]:
        return await self._ask(lambda: self._server.publish(news))

    async def read(self, shard_id: int) -> SeenMembers:
        seen = await self._ask(lambda: self._server.read(shard_id))
        if seen.published_ms_ago is not None:
            self._server.world.sometimes("a new owner read what was left of sessions")
        return seen

    async def seen_ms_ago(self, members: Sequence[tuple[int, MemberName]]) -> list[int | None]:
        return await self._ask(lambda: self._server.seen_ms_ago(members))

    async def record(self, shard_id: int, members: Sequence[MemberName]) -> list[bool]:
        return await self._ask(lambda: self._server.record(shard_id, members))

    async def close(self) -> None:
        """There is no connection to close."""

    async def _ask(self, command: Callable[[], Coroutine[Any, Any, Found]]) -> Found:
        outcome = self._replica.loop.create_future()

        def settle(answer: tuple[Found] | tuple[Exception] | None) -> None:
            if not outcome.done():
                outcome.set_result(answer)

        world = self._server.world
        sent_ms = world.scheduler.now_ms
        self._server.submit(self._replica, command, settle)
        answer: tuple[Found] | tuple[Exception] | None = await outcome
        if answer is None or isinstance(answer[0], Exception):
            world.sometimes("the liveness store did not answer")
            self._server.faults_ms.append((sent_ms, world.scheduler.now_ms))
        if answer is None:
            raise LivenessUnavailable(f"no answer within {TIMEOUT_MS} ms")
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]
