"""Events that a member publishes to its watchers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import NO_TOKEN

Share = TypeVar("Share")
Event = TypeVar("Event")


@dataclass(frozen=True, slots=True)
class Assigned(Generic[Share]):
    """The member holds `share` in generation `generation_id`. Resources compare `fencing_token`."""

    generation_id: int
    share: Share
    is_leader: bool
    leader_id: str
    protocol_name: str
    fencing_token: int = NO_TOKEN


@dataclass(frozen=True, slots=True)
class RebalanceStarted:
    """A rebalance has started; `on_revoked` is being called, and the share is held until it returns."""

    generation_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Revoked(Generic[Share]):
    """The member has released `share`; its work had stopped before."""

    generation_id: int
    share: Share


@dataclass(frozen=True, slots=True)
class Lost(Generic[Share]):
    """Another member may already have `share`. `reason` is "deadline" if no server was reached in time."""

    generation_id: int
    share: Share
    reason: str


@dataclass(frozen=True, slots=True)
class Unreachable:
    """No coordinator has answered since then (seconds of the event loop's clock); a share is held until its deadline.

    `cause` is the cause of the last failure.
    """

    since: float
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The coordinator has temporarily rejected this member's calls since then: the group is full, or it throttles. They
    are retried; `cause` is the coordinator's message.
    """

    since: float
    code: ErrorCode
    cause: str


@dataclass(frozen=True, slots=True)
class Reachable:
    """The coordinator serves this member's calls again."""


@dataclass(frozen=True, slots=True)
class GenerationFailed:
    """The leader could not assign this generation, for the reason in `detail`; all members join again after a pause."""

    generation_id: int
    detail: str


MemberEvent: TypeAlias = (
    Assigned[Share]
    | RebalanceStarted
    | Revoked[Share]
    | Lost[Share]
    | GenerationFailed
    | Unreachable
    | Rejected
    | Reachable
)


class Broadcast(Generic[Event]):
    """Publishes every event to every listener. Events are few, so publishers never wait."""

    def __init__(self) -> None:
        self._queues: list[asyncio.Queue[Event | None]] = []
        self._is_over = False

    def publish(self, event: Event) -> None:
        for queue in self._queues:
            queue.put_nowait(event)

    def end(self) -> None:
        """End all listeners."""
        self._is_over = True
        for queue in self._queues:
            queue.put_nowait(None)

    async def listen(self, *first: Event) -> AsyncGenerator[Event, None]:
        """Yield `first`, then all events from now on."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        for event in first:
            queue.put_nowait(event)
        if self._is_over:
            queue.put_nowait(None)
        self._queues.append(queue)
        try:
            while (following := await queue.get()) is not None:
                yield following
        finally:
            self._queues.remove(queue)
