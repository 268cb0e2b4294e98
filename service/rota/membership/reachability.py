"""Whether the coordinator answers. That it does not is told once, and takes nothing from anybody."""

from __future__ import annotations

from rota.membership.events import Event, Reachable, Unreachable
from rota.protocol.messages import Request, parks_for_ms


class Reachability:
    """Turns answers and silence into news of them.

    A shard that changes hands, or a replica that is restarted, leaves a call or two without an answer, and the next
    one gets it. Nobody could do anything about that, so it is news only from `patience_ms` on.
    """

    def __init__(self, patience_ms: int) -> None:
        self._patience_ms = patience_ms
        self._silent_since_ms: int | None = None
        self._is_told = False

    @property
    def unreachable_since_ms(self) -> int | None:
        return self._silent_since_ms if self._is_told else None

    def silence(self, request: Request, sent_at_ms: int, now_ms: int) -> list[Event]:
        """A call was not answered, which is silence from when its answer was due, or it broke off."""
        if self._silent_since_ms is None:
            self._silent_since_ms = min(sent_at_ms + parks_for_ms(request), now_ms)
        if self._is_told or now_ms - self._silent_since_ms < self._patience_ms:
            return []
        self._is_told = True
        return [Unreachable(self._silent_since_ms)]

    def answer(self) -> list[Event]:
        was_told, self._is_told, self._silent_since_ms = self._is_told, False, None
        return [Reachable()] if was_told else []
