"""Several heartbeats of one message, answered together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar, cast

from rota.core.replica.ports import Answer
from rota.protocol.messages import Heartbeat, HeartbeatMany

GROUPS_OF_A_TURN = 250
"""Of a message with heartbeats for thousands of groups so many are read, or answered, in a turn of the event loop: some
5 ms' worth. 10,000 take 0.3 s."""

Beat = TypeVar("Beat", bound=Heartbeat | HeartbeatMany)
Beat_contra = TypeVar("Beat_contra", bound=Heartbeat | HeartbeatMany, contravariant=True)


class Hearing(Protocol[Beat_contra]):
    """The part of a coordinator that is needed here."""

    def try_heartbeat(self, request: Beat_contra) -> Answer | None: ...

    def submit(self, request: Beat_contra, done: Callable[[Answer], None]) -> object: ...


def answers_to(coordinator: Hearing[Beat], requests: Sequence[Beat]) -> asyncio.Future[list[Answer]]:
    """The answers in the order of the requests, which are submitted at once."""
    answers: list[Answer | None] = [coordinator.try_heartbeat(request) for request in requests]
    missing = [index for index, answer in enumerate(answers) if answer is None]
    left = len(missing)
    all_answered: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

    def answered(index: int, answer: Answer) -> None:
        nonlocal left
        answers[index], left = answer, left - 1
        if not left and not all_answered.done():
            all_answered.set_result(cast("list[Answer]", answers))

    for index in missing:
        coordinator.submit(requests[index], partial(answered, index))
    if not missing:
        all_answered.set_result(cast("list[Answer]", answers))
    return all_answered
