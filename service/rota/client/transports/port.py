"""The interface of transports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

from rota.protocol.messages import Reply, Request


class Answer(Protocol):
    """A reply with its position in the shard's history."""

    @property
    def reply(self) -> Reply: ...

    @property
    def revision(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    @property
    def retry_after_ms(self) -> int:
        """The pause that the sender asks for; 0 if it asks for none."""


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """One line of a group's journal. `revision` is its number in the shard, `at` the owner's seconds since 1970."""

    revision: int
    at: float
    generation_id: int
    kind: str
    reason: str
    payload: dict[str, Any]


class Transport(Protocol):
    """Carries requests to a coordinator.

    The coordinator's decisions are replies with an `error`; only a missing answer is raised, as
    `CoordinatorUnreachable`. Cancelling a call closes it, and the coordinator un-parks it.
    """

    async def send(self, request: Request, *, timeout_ms: int) -> Answer:
        """Return the answer to `request`, or raise `CoordinatorUnreachable` after at most `timeout_ms`."""

    def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[GroupEvent]:
        """Yield a group's journal lines with a higher revision, first the past ones, then live; None: from now on.

        Ends when the coordinator ends it (it drains); raises `CoordinatorUnreachable` when the connection breaks, and
        `RevisionOutOfRange` if the journal does not have the next lines.
        """

    async def close(self) -> None: ...
