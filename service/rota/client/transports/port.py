"""What the SDK asks of a transport."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

from rota.protocol.messages import Reply, Request


class Answer(Protocol):
    """A reply with the place in the shard's history that it reflects."""

    @property
    def reply(self) -> Reply: ...

    @property
    def revision(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    @property
    def retry_after_ms(self) -> int:
        """How long its sender asks to be left alone; 0 where it does not say."""


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

    What the coordinator decides comes back as a reply with its `error`; only that nobody answered is raised,
    as `CoordinatorUnreachable`. Cancelling a call hangs up: the coordinator un-parks it.
    """

    async def send(self, request: Request, *, timeout_ms: int) -> Answer:
        """The answer to `request`, or `CoordinatorUnreachable` after `timeout_ms` at the latest."""

    def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[GroupEvent]:
        """A group's journal lines with a higher revision, first the past ones, then live; None: from now on.

        Ends when the coordinator ends it (it drains); raises `CoordinatorUnreachable` when the connection breaks, and
        `RevisionOutOfRange` where the journal does not have the next lines.
        """

    async def close(self) -> None: ...
