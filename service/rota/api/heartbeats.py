"""Several heartbeats of one message, answered together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Heartbeat, HeartbeatMany, refuse
from rota.replica.ports import Answer

NOT_DURABLE = "the store is slow: the heartbeat was received, and its answer is not durable yet"

Beat = TypeVar("Beat", bound=Heartbeat | HeartbeatMany)
Beat_contra = TypeVar("Beat_contra", bound=Heartbeat | HeartbeatMany, contravariant=True)


class Hearing(Protocol[Beat_contra]):
    """The part of a coordinator that is needed here."""

    def try_heartbeat(self, request: Beat_contra) -> Answer | None: ...

    def submit(self, request: Beat_contra, done: Callable[[Answer], None]) -> object: ...


def answer_all(
    coordinator: Hearing[Beat],
    requests: Sequence[Beat],
    done: Callable[[list[Answer]], None],
    limit_s: float | None = None,
    known: Sequence[Answer] = (),
) -> None:
    """`done` gets the answers in the order of the requests, once all are there, and maybe before this returns.

    Those without an immediate answer are submitted at once, so that they are forwarded in one message. With `limit_s`
    those that have no answer by then are refused: they hold up the others no longer. `known` are answers to the first
    requests: asked again, these would be heartbeats that come too soon, which their caller is charged for.
    """
    answers: list[Answer] = []
    missing: dict[int, Beat] = {}
    for index, request in enumerate(requests):
        answer = known[index] if index < len(known) else coordinator.try_heartbeat(request)
        if answer is None:
            missing[index] = request
        answers.append(answer)  # type: ignore[arg-type]  # it is replaced before `done` gets them
    if not missing:
        done(answers)
        return

    deadline: asyncio.TimerHandle | None = None

    def answered(index: int, answer: Answer) -> None:
        if missing.pop(index, None) is None:
            return  # It was refused.
        answers[index] = answer
        if not missing:
            if deadline is not None:
                deadline.cancel()
            done(answers)

    def refuse_missing() -> None:
        for index, request in list(missing.items()):
            answered(index, Answer(refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, NOT_DURABLE)))

    for index, request in list(missing.items()):
        coordinator.submit(request, partial(answered, index))
    if missing and limit_s is not None:
        deadline = asyncio.get_running_loop().call_later(limit_s, refuse_missing)


async def answers_to(
    coordinator: Hearing[Beat], requests: Sequence[Beat], limit_s: float | None = None, known: Sequence[Answer] = ()
) -> list[Answer]:
    """The same, awaited."""
    answered: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

    def done(answers: list[Answer]) -> None:
        if not answered.done():
            answered.set_result(answers)

    answer_all(coordinator, requests, done, limit_s, known)
    return await answered
