"""Whether the coordinator serves a member's calls. Trouble is published once, with its cause, and costs no share."""

from __future__ import annotations

from dataclasses import dataclass

from rota.membership.events import Event, Reachable, Rejected, Unreachable
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Request, parks_for_ms


@dataclass(slots=True)
class Trouble:
    """Calls get no useful answer. `code` is NONE where no coordinator answers at all."""

    since_ms: int
    code: ErrorCode
    cause: str
    is_published: bool = False

    def event(self) -> Event:
        if self.code is ErrorCode.NONE:
            return Unreachable(self.since_ms, self.cause)
        return Rejected(self.since_ms, self.code, self.cause)


class Reachability:
    """Turns answers and silence into events.

    A shard that changes hands, or a replica that restarts, leaves a call or two without an answer, and the next one
    gets it. A program can do nothing about that, so trouble is published only once it has lasted for `notice_ms`.
    """

    def __init__(self, notice_ms: int) -> None:
        self._notice_ms = notice_ms
        self._trouble: Trouble | None = None

    @property
    def unreachable_since_ms(self) -> int | None:
        """Since when no coordinator answers, once that is published."""
        trouble = self._trouble
        is_silence = trouble is not None and trouble.is_published and trouble.code is ErrorCode.NONE
        return trouble.since_ms if trouble is not None and is_silence else None

    @property
    def cause(self) -> str:
        """Why calls are not served now, as the last one says; empty while they are."""
        return "" if self._trouble is None or not self._trouble.is_published else self._trouble.cause

    @property
    def notice_at_ms(self) -> int | None:
        """When `on_time` has an event to publish, unless a call is answered before."""
        if self._trouble is None or self._trouble.is_published:
            return None
        return self._trouble.since_ms + self._notice_ms

    def silence(self, request: Request, sent_at_ms: int, now_ms: int, cause: str, *, was_sent: bool) -> list[Event]:
        """A call got no answer: silence lasts since the answer was due, or since the connection failed."""
        due_ms = sent_at_ms + parks_for_ms(request) if was_sent else sent_at_ms
        return self._suffer(min(due_ms, now_ms), ErrorCode.NONE, cause, now_ms)

    def rejection(self, code: ErrorCode, detail: str, now_ms: int) -> list[Event]:
        """The coordinator answers, but has no room for this member now."""
        return self._suffer(now_ms, code, f"{code}: {detail}" if detail else str(code), now_ms)

    def answer(self) -> list[Event]:
        former, self._trouble = self._trouble, None
        return [Reachable()] if former is not None and former.is_published else []

    def on_time(self, now_ms: int) -> list[Event]:
        trouble, at_ms = self._trouble, self.notice_at_ms
        if trouble is None or at_ms is None or now_ms < at_ms:
            return []
        trouble.is_published = True
        return [trouble.event()]

    def _suffer(self, since_ms: int, code: ErrorCode, cause: str, now_ms: int) -> list[Event]:
        events: list[Event] = []
        if self._trouble is not None and self._trouble.code is not code:
            events = self.answer()
        if self._trouble is None:
            self._trouble = Trouble(since_ms, code, cause)
        self._trouble.cause = cause or self._trouble.cause
        return events + self.on_time(now_ms)
