"""The SDK's transport over the simulated network: to the replicas of a world, from one of its programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from rota.client.errors import CoordinatorUnreachable
from rota.client.transports.port import GroupEvent
from rota.protocol.calls import CALLS, refuse
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import CommitOffsets, JoinGroup, LeaveGroup, Reply, Request, SyncGroup
from rota.protocol.wire.replies import Received
from rota.protocol.wire.routes import REQUESTS
from tests.simulation.groups.wire_rules import WireRules
from tests.simulation.network import Exchange

if TYPE_CHECKING:
    from tests.simulation.groups.life import Life

UNAVAILABLE = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.THROTTLED,
)
_LONGEST_TEXT = 1_000


class SimulatedTransport:
    """A program's connections."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self.wire = WireRules(life)
        self._exchanges: dict[Exchange, None] = {}
        self.refuses_until_ms = 0
        """Until when connections are refused."""

    async def send(self, request: Request, *, timeout_ms: int) -> Received:
        """As `Transport.send`."""
        world = self._life.world
        if not world.is_calm and world.draws.random() < world.plan.refused:
            return await self._refused(request)
        self.wire.sent(request)
        try:
            if world.scheduler.now_ms < self.refuses_until_ms:
                await asyncio.sleep(0.001)
                raise CoordinatorUnreachable("connection refused", was_sent=False)
            if (refusal := _rejection(request)) is not None:
                return Received(refusal)
            return await self._carried(request, timeout_ms)
        finally:
            self.wire.concluded(request)

    async def _carried(self, request: Request, timeout_ms: int) -> Received:
        outcome: asyncio.Future[Reply | None] = self._life.loop.create_future()

        def settle(reply: Reply | None) -> None:
            if not outcome.done():
                outcome.set_result(reply)

        exchange = self._life.world.network.call(self._life, request, timeout_ms, settle)
        self._exchanges[exchange] = None
        try:
            reply = await outcome
        except asyncio.CancelledError:
            exchange.cancel()
            raise
        finally:
            del self._exchanges[exchange]
        if reply is None:
            raise CoordinatorUnreachable("the connection was reset, or there was no answer in time")
        self.wire.answered(request, reply)
        return Received(reply, exchange.call.revision, exchange.call.epoch)

    async def _refused(self, request: Request) -> Received:
        """A coordinator that is not available, or asks for patience."""
        self.wire.tried(request)
        try:
            await asyncio.sleep(0.002)
            draws = self._life.world.draws
            code = draws.choice(UNAVAILABLE)
            asked_ms = draws.choice((0, 0, 300, 86_400_000)) if code is ErrorCode.THROTTLED else 0
            reply = refuse(request, code, "bad weather")
            self.wire.answered(request, reply)
        finally:
            self.wire.concluded(request)
        return Received(reply, retry_after_ms=asked_ms)

    async def watch(self, *_asked: object) -> AsyncIterator[GroupEvent]:
        """No program follows a group: the stream ends at once."""
        events: tuple[GroupEvent, ...] = ()
        for event in events:
            yield event

    async def close(self) -> None:
        """There is no connection to close."""

    def reset(self) -> None:
        """Break all connections."""
        for exchange in list(self._exchanges):
            exchange.settle(None)

    def refuse(self, for_ms: int) -> None:
        """Break all connections, and refuse those of the next time."""
        self.refuses_until_ms = self._life.world.scheduler.now_ms + for_ms
        self.reset()


def _rejection(request: Request) -> Reply | None:
    """What the server's decoder rejects before a replica sees it; only looked at where that is likely."""
    if not _is_odd(request):
        return None
    shape, names = REQUESTS[type(request)], CALLS[type(request)].path_names
    try:
        shape.decode(shape.encode(request), Limits(), **{name: getattr(request, name) for name in names})
    except RejectedRequest as rejected:
        return refuse(request, rejected.code, rejected.detail)
    return None


def _is_odd(request: Request) -> bool:
    match request:
        case JoinGroup():
            return len(request.reason) > _LONGEST_TEXT
        case SyncGroup():
            return len(request.leader_error or "") > _LONGEST_TEXT
        case LeaveGroup():
            return any(len(member.reason) > _LONGEST_TEXT for member in request.members)
        case CommitOffsets():
            return any(item.offset < 0 for item in request.offsets)
        case _:
            return False
