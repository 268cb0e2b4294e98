"""Whether the coordinator serves a member's calls. Trouble is published once, with its cause, and costs no share."""

from __future__ import annotations

from dataclasses import dataclass

from rota.core.membership.events import Event, Reachable, Rejected, Unreachable
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import JoinGroup, Request, parks_for_ms

_STALL_MS = 200
"""Later than this, and the program was blocked or asleep: the answer may have come in the meantime, unread."""


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


@dataclass(frozen=True, slots=True)
class _Call:
    """A call under way, and when its answer is due."""

    request: Request
    due_ms: int


class Reachability:
    """Turns answers and silence into events.

    A shard that changes hands, or a replica that restarts, leaves a call or two without an answer, and the next one
    gets it. A program can do nothing about that, so trouble is published only once it has lasted for `notice_ms`.
    A call with an answer overdue for that long is trouble, too, before it fails: a server that hangs accepts calls.
    """

    def __init__(self, notice_ms: int) -> None:
        self._notice_ms = notice_ms
        self._trouble: Trouble | None = None
        self._under_way: list[_Call] = []

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
        if self._trouble is None:
            due_ms = min((call.due_ms for call in self._under_way), default=None)
            return None if due_ms is None else due_ms + self._notice_ms
        return None if self._trouble.is_published else self._trouble.since_ms + self._notice_ms

    def sent(self, request: Request, sent_at_ms: int) -> None:
        """A call is under way, until `ended`."""
        self._under_way.append(_Call(request, sent_at_ms + _parks_for_ms(request)))

    def ended(self, request: Request) -> None:
        """The call was answered, has failed, or was cancelled."""
        self._under_way = [call for call in self._under_way if call.request is not request]

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
        at_ms = self.notice_at_ms
        if at_ms is None or now_ms < at_ms:
            return []
        if self._trouble is None and now_ms > at_ms + _STALL_MS:
            self._under_way = [_Call(call.request, now_ms) for call in self._under_way]
            return []
        if self._trouble is None:
            self._trouble = Trouble(at_ms - self._notice_ms, ErrorCode.NONE, "the coordinator does not answer")
        self._trouble.is_published = True
        return [self._trouble.event()]

    def _suffer(self, since_ms: int, code: ErrorCode, cause: str, now_ms: int) -> list[Event]:
        events: list[Event] = []
        if self._trouble is not None and self._trouble.code is not code:
            events = self.answer()
        if self._trouble is None:
            self._trouble = Trouble(since_ms, code, cause)
        self._trouble.cause = cause or self._trouble.cause
        return events + self.on_time(now_ms)


def _parks_for_ms(request: Request) -> int:
    """A new dynamic member gets its id at once, whatever it is ready to wait."""
    is_new = isinstance(request, JoinGroup) and not (request.member_id or request.group_instance_id)
    return 0 if is_new else parks_for_ms(request)
