"""Answers on their way to the callers: so many in a turn of the event loop, in the order in which they became known."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from rota.replica.ports import Answer

ANSWERS_OF_A_TURN = 1_000
"""Some 15 ms' worth. With all answers of a busy moment in one turn, a renewal of the leases would come too late."""


class Caller(Protocol):
    """Waits for an answer."""

    def answered(self, answer: Answer) -> None: ...


class Answers:
    """Gives answers to callers in turns of their own: an error of a caller's is none of a shard."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Caller, Answer]] = deque()
        self._is_due = False
        """Whether a turn comes in which some of them are given."""

    def give(self, answered: Iterable[tuple[Caller, Answer]]) -> None:
        """Soon, behind those that were given before."""
        self._waiting.extend(answered)
        self._look_soon()

    def _give_some(self) -> None:
        """Each answer to its caller, whatever becomes of the others."""
        self._is_due = False
        for _ in range(min(len(self._waiting), ANSWERS_OF_A_TURN)):
            caller, answer = self._waiting.popleft()
            try:
                caller.answered(answer)
            except Exception as error:
                context = {"message": "a caller failed at its answer", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
        self._look_soon()

    def _look_soon(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._give_some)
