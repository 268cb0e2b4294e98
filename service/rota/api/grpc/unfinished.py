"""Messages that callers have not finished sending: received a few at a time, in fair turns, and not for ever.

gRPC makes room for a whole message once it is asked to receive it, and keeps a few KiB of one that it is not asked for.
So the number of messages that are received at the same time bounds the memory that unfinished ones take.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from rota.access.budgets import Share
from rota.protocol.errors import ErrorCode, RejectedRequest

Message = TypeVar("Message")

DEADLINE_S = 30.0
"""For a message to arrive, and for its turn to come."""
STALLED_S = 2.0
"""A message that takes so long is refused where others wait for its turn."""
SWEEP_EVERY_S = 0.25

TOO_SLOW = "the message did not arrive in time"
STALLS = "the message arrives too slowly while others wait"
TOO_MANY = "too many rpcs wait until their messages are received"


@dataclass(slots=True, eq=False)
class _Reading:
    """A message that is received now."""

    source: str
    since: float
    task: asyncio.Task[object] | None
    refusal: str = ""


class Unfinished:
    """Receives messages within a budget. `refused` is called each time that a message is refused."""

    def __init__(self, messages: Share, waiting: Share, refused: Callable[[], None]) -> None:
        self._messages = messages
        self._waiting = waiting
        self._refused = refused
        self._reading: dict[_Reading, None] = {}
        """The oldest first."""
        self._taken: Counter[str] = Counter()
        """Turns by source: those that read, and those that may begin."""
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Of each source that waits. The first source has the next turn."""
        self._sweeping: asyncio.TimerHandle | None = None

    async def receive(self, source: str, read: Callable[[], Awaitable[Message]]) -> Message:
        """The message; raises `RejectedRequest` (THROTTLED) where it would take too long or too much."""
        if self._has_room(source) and not self._queues:
            self._taken[source] += 1
        else:
            await self._turn(source)
        loop = asyncio.get_running_loop()
        reading = _Reading(source, loop.time(), asyncio.current_task())
        self._reading[reading] = None
        self._keep_sweeping()
        try:
            return await read()
        except asyncio.CancelledError:
            if not reading.refusal or reading.task is None:
                raise
            reading.task.uncancel()
            raise self._refusal(reading.refusal) from None
        finally:
            del self._reading[reading]
            self._give_back(source)

    # --- turns ----------------------------------------------------------------------------------------

    def _has_room(self, source: str) -> bool:
        return self._taken.total() < self._messages.in_all and self._taken[source] < self._messages.per_source

    async def _turn(self, source: str) -> None:
        """Wait for a turn, which is taken once this returns."""
        queue = self._queues.setdefault(source, deque())
        if len(queue) >= self._waiting.per_source or sum(map(len, self._queues.values())) >= self._waiting.in_all:
            raise self._refusal(TOO_MANY)
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self._begin_turns()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await turn
        except BaseException as error:
            self._leave(source, turn)
            if isinstance(error, TimeoutError):
                raise self._refusal(TOO_MANY) from None
            raise

    def _begin_turns(self) -> None:
        """Give a turn that is free to each source that waits, in the order in which they had their last one."""
        for source, queue in tuple(self._queues.items()):
            if not self._has_room(source):
                continue
            turn = _next_of(queue)
            self._queues.move_to_end(source)
            if not queue:
                del self._queues[source]
            if turn is not None:
                self._taken[source] += 1
                turn.set_result(None)

    def _leave(self, source: str, turn: asyncio.Future[None]) -> None:
        """Give the turn back if it has come, and wait for it no longer otherwise."""
        if turn.done() and not turn.cancelled():
            self._give_back(source)
            return
        queue = self._queues.get(source)
        if queue and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._queues[source]

    def _give_back(self, source: str) -> None:
        self._taken[source] -= 1
        if not self._taken[source]:
            del self._taken[source]
        if self._queues:
            self._begin_turns()

    # --- messages that take too long ------------------------------------------------------------------

    def _keep_sweeping(self) -> None:
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(SWEEP_EVERY_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        if self._reading:
            self._keep_sweeping()
        now = asyncio.get_running_loop().time()
        for reading in self._reading:
            lasts_s = now - reading.since
            if lasts_s >= DEADLINE_S:
                self._end(reading, TOO_SLOW)
            elif lasts_s >= STALLED_S and self._queues and not self._has_room(reading.source):
                self._end(reading, STALLS)

    def _end(self, reading: _Reading, why: str) -> None:
        if not reading.refusal and reading.task is not None:
            reading.refusal = why
            reading.task.cancel()

    def _refusal(self, why: str) -> RejectedRequest:
        self._refused()
        return RejectedRequest(ErrorCode.THROTTLED, why)


def _next_of(queue: deque[asyncio.Future[None]]) -> asyncio.Future[None] | None:
    """The first rpc that still waits: one that was cancelled may not have left yet."""
    while queue:
        turn = queue.popleft()
        if not turn.done():
            return turn
    return None
