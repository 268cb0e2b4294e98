"""Several heartbeats of one message, answered together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar, cast

from rota.protocol.messages import Heartbeat, HeartbeatMany
from rota.replica.ports import Answer

GROUPS_OF_A_TURN = 250
"""Of a message with heartbeats for thousands of groups so many are read, or answered, in a turn of the event loop: some
5 ms' worth. 10,000 take 0.3 s."""

Beat = TypeVar("Beat", bound=Heartbeat | HeartbeatMany)
Beat_contra = TypeVar("Beat_contra", bound=Heartbeat | HeartbeatMany, contravariant=True)


class Hearing(Protocol[Beat_contra]):
    """The part of a coordinator that is needed here."""

    def try_heartbeat(self, request: Beat_contra) -> Answer | None: ...

    def submit(self, request: Beat_contra, done: Callable[[Answer], None]) -> object: ...


async def answers_to(coordinator: Hearing[Beat], requests: Sequence[Beat]) -> list[Answer]:
    """The answers in the order of the requests, which are submitted at once."""
    answers: list[Answer | None] = [coordinator.try_heartbeat(request) for request in requests]
    missing = [index for index, answer in enumerate(answers) if answer is None]
    left = len(missing)
    all_answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(index: int, answer: Answer) -> None:
        nonlocal left
        answers[index], left = answer, left - 1
        if not left and not all_answered.done():
            all_answered.set_result(None)

    for index in missing:
        coordinator.submit(requests[index], partial(answered, index))
    if missing:
        await all_answered
    return cast("list[Answer]", answers)


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
