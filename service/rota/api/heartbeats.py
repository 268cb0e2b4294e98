"""Several heartbeats of one message, answered together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, TypeVar

from rota.protocol.messages import Request
from rota.replica.ports import Answer

Beat_contra = TypeVar("Beat_contra", bound=Request, contravariant=True)


class Hearing(Protocol[Beat_contra]):
    """The part of a coordinator that is needed here."""

    def try_heartbeat(self, request: Beat_contra) -> Answer | None: ...

    async def call(self, request: Beat_contra) -> Answer: ...


async def answers_to(coordinator: Hearing[Beat_contra], requests: Sequence[Beat_contra]) -> list[Answer]:
    """In the order of the requests. Those without an immediate answer are sent at once, in one batch."""
    at_hand = [coordinator.try_heartbeat(request) for request in requests]
    missing = [request for request, answer in zip(requests, at_hand, strict=True) if answer is None]
    if not missing:
        return [answer for answer in at_hand if answer is not None]
    others = iter(await asyncio.gather(*map(coordinator.call, missing)))
    return [answer or next(others) for answer in at_hand]
