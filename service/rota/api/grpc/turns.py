"""Turns of the event loop, shared by all session streams of a server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

BYTES_OF_A_TURN = 32 * 1024
"""Some 250 joins, or 8 ms. gRPC takes in one new rpc in two turns: with longer ones, other clients wait for seconds."""


class Turns:
    """Lets messages and their parts begin, so many bytes in a turn of the event loop, in the order in which they came.

    A message has up to 1,000 calls, and gRPC wakes all streams whose messages have arrived, or that have ended, in one
    turn. If thousands of members rejoin or leave at once, that turn takes seconds; the leases run out, since each step
    of a renewal needs one more.
    """

    def __init__(self) -> None:
        self._left = BYTES_OF_A_TURN
        """Of the present turn."""
        self._is_due = False
        """Whether `_next_turn` comes."""
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def try_begin(self, size: int) -> bool:
        """Begin a message of so many bytes in this turn; False where there is no room: then `wait`."""
        if self._waiting or self._left <= 0:
            return False
        self._count(size)
        return True

    async def wait(self, size: int) -> None:
        """Return in the turn in which the message begins."""
        begins = asyncio.get_running_loop().create_future()

        def start() -> None:
            if not begins.done():  # else its stream has ended
                begins.set_result(None)

        self._wait(size, start)
        await begins

    def begin(self, size: int, start: Callable[[], None]) -> None:
        """Call `start` in a turn with room for so many bytes: at once if there is room."""
        if self.try_begin(size):
            start()
        else:
            self._wait(size, start)

    def _wait(self, size: int, start: Callable[[], None]) -> None:
        self._waiting.append((size, start))
        self._count(0)

    def _count(self, size: int) -> None:
        self._left -= size
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._left, self._is_due = BYTES_OF_A_TURN, False
        while self._waiting and self._left > 0:
            size, start = self._waiting.popleft()
            self._count(size)
            start()
