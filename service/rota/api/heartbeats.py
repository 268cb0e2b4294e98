"""Several heartbeats of one message, answered together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Heartbeat, HeartbeatMany
from rota.replica.ports import Answer

NOT_DURABLE = "the store is slow: the heartbeat was received, and its answer is not durable yet"

GROUPS_OF_A_TURN = 250
"""Of a message with heartbeats for thousands of groups so many are read, or answered, in a turn of the event loop: some
5 ms' worth. 10,000 take 0.3 s."""

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
) -> None:
    """`done` gets the answers in the order of the requests, once all are there, and maybe before this returns.

    Those without an immediate answer are submitted at once, so that they are forwarded in one message. With `limit_s`
    those that have no answer by then are refused: they hold up the others no longer.
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
    coordinator: Hearing[Beat], requests: Sequence[Beat], limit_s: float | None = None
) -> list[Answer]:
    """The same, awaited."""
    answered: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

    def done(answers: list[Answer]) -> None:
        if not answered.done():
            answered.set_result(answers)

    answer_all(coordinator, requests, done, limit_s)
    return await answered


async def tried(
    coordinator: Hearing[Beat],
    requests: Sequence[Beat],
    note: Callable[[Beat, Answer], None],
    next_turn: Callable[[], Awaitable[None]],
) -> tuple[list[Answer], dict[int, Beat]]:
    """The answers that are at hand, each of which `note` gets, and by their places the requests without one.

    To ask for the others again would charge their caller for heartbeats that come too soon. `next_turn` is awaited
    before each further `GROUPS_OF_A_TURN`.
    """
    answers: list[Answer] = []
    missing: dict[int, Beat] = {}
    for number, request in enumerate(requests):
        if number and number % GROUPS_OF_A_TURN == 0:
            await next_turn()
        answer = coordinator.try_heartbeat(request)
        if answer is None:
            missing[number] = request
        else:
            note(request, answer)
        answers.append(answer)  # type: ignore[arg-type]  # `complete` replaces it
    return answers, missing


async def complete(
    coordinator: Hearing[Beat], answers: list[Answer], missing: dict[int, Beat], note: Callable[[Beat, Answer], None]
) -> list[Answer]:
    """What `tried` has returned, once all answers are there."""
    for number, answer in zip(missing, await answers_to(coordinator, [*missing.values()]), strict=True):
        note(missing[number], answer)
        answers[number] = answer
    return answers
