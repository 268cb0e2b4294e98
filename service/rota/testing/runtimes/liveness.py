"""The simulated liveness store as the production runtime meets it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rota.group.sessions import MemberName
from rota.replica.ports import LivenessUnavailable, SeenMembers, ShardNews
from rota.testing.liveness import TIMEOUT_MS, LivenessServer

if TYPE_CHECKING:
    from rota.testing.runtimes.replica import RuntimeReplica

Found = TypeVar("Found")


class LivenessOfReplica:
    """`Liveness` for one replica: each method is one message to the server and one back."""

    def __init__(self, replica: RuntimeReplica, server: LivenessServer) -> None:
        self._replica = replica
        self._server = server

    async def ping(self) -> None:
        await self._ask(self._server.ping)

    async def publish(self, news: Sequence[ShardNews]) -> list[int]:
        return await self._ask(lambda: self._server.publish(news))

    async def read(self, shard_id: int) -> SeenMembers:
        return await self._ask(lambda: self._server.read(shard_id))

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

        self._server.submit(self._replica, command, settle)
        answer: tuple[Found] | tuple[Exception] | None = await outcome
        if answer is None:
            raise LivenessUnavailable(f"no answer within {TIMEOUT_MS} ms")
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]
