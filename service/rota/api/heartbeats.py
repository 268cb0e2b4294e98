"""Several heartbeats of one message, answered together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from rota.protocol.messages import Heartbeat, HeartbeatMany
from rota.replica.ports import Answer

Beat = TypeVar("Beat", bound=Heartbeat | HeartbeatMany)
Beat_contra = TypeVar("Beat_contra", bound=Heartbeat | HeartbeatMany, contravariant=True)


class Hearing(Protocol[Beat_contra]):
    """The part of a coordinator that is needed here."""

    def try_heartbeat(self, request: Beat_contra) -> Answer | None: ...

    def submit(self, request: Beat_contra, done: Callable[[Answer], None]) -> object: ...


def answer_all(coordinator: Hearing[Beat], requests: Sequence[Beat], done: Callable[[list[Answer]], None]) -> None:
    """`done` gets the answers in the order of the requests, once all are there, and maybe before this returns.

    Those without an immediate answer are submitted at once, so that they are forwarded in one message.
    """
    answers: list[Answer] = []
    missing: dict[int, Beat] = {}
    for index, request in enumerate(requests):
        answer = coordinator.try_heartbeat(request)
        if answer is None:
            missing[index] = request
        answers.append(answer)  # type: ignore[arg-type]  # it is replaced before `done` gets them
    if not missing:
        done(answers)
        return

    def answered(index: int, answer: Answer) -> None:
        answers[index] = answer
        del missing[index]
        if not missing:
            done(answers)

    for index, request in list(missing.items()):
        coordinator.submit(request, partial(answered, index))


async def answers_to(coordinator: Hearing[Beat], requests: Sequence[Beat]) -> list[Answer]:
    """The same, awaited."""
    answered: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

    def done(answers: list[Answer]) -> None:
        if not answered.done():
            answered.set_result(answers)

    answer_all(coordinator, requests, done)
    return await answered
