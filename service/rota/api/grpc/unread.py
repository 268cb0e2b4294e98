"""Events that the client of a session stream has not taken yet."""

from __future__ import annotations

from collections import deque

from rota.api.grpc.calls import dump
from rota.v1.coordinator_pb2 import SessionEvent
from rota.wire.batching import dump_next

MAX_UNREAD = 20_000
"""Events. A client that falls further behind is cut off."""
MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""The same in bytes: eight of the largest requests. An answer that is larger by itself goes out nevertheless."""


class Unread:
    """A queue of them."""

    __slots__ = ("_bytes", "_events")

    def __init__(self) -> None:
        self._events: deque[SessionEvent] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._events)

    @property
    def is_full(self) -> bool:
        return len(self._events) >= MAX_UNREAD or self._bytes > MAX_UNREAD_BYTES

    @property
    def first_kind(self) -> str | None:
        """The name of the first event's field."""
        kind: str | None = self._events[0].WhichOneof("event")
        return kind

    def append(self, event: SessionEvent) -> None:
        self._events.append(event)
        self._bytes += event.ByteSize()

    def dump_next(self, *, batching: bool) -> bytes:
        """The bytes of the next message: of the first event, or of as many as go into one."""
        data = dump_next(self._events) if batching else dump(self._events.popleft())
        self._bytes = self._bytes - len(data) if self._events else 0
        return data
