"""Whether the coordinator answers. That it does not is told once, and takes nothing from anybody."""

from __future__ import annotations

from rota.membership.events import Event, Reachable, Unreachable
from rota.membership.states import UNAVAILABLE
from rota.protocol.errors import ErrorCode


class Reachability:
    """Turns answers and silence into news of them."""

    def __init__(self) -> None:
        self.unreachable_since_ms: int | None = None

    def silence(self, sent_at_ms: int) -> list[Event]:
        """A call sent then was not answered."""
        if self.unreachable_since_ms is not None:
            return []
        self.unreachable_since_ms = sent_at_ms
        return [Unreachable(sent_at_ms)]

    def answer(self, code: ErrorCode, sent_at_ms: int) -> list[Event]:
        """A call sent then was answered; that nobody coordinates the group now is as good as silence."""
        if code in UNAVAILABLE:
            return self.silence(sent_at_ms)
        if self.unreachable_since_ms is None:
            return []
        self.unreachable_since_ms = None
        return [Reachable()]
