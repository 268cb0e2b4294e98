"""A mapping that evicts the least recently used entry, so that a client that runs for months stays small."""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """At most `capacity` entries; each look-up and each `put` makes an entry the most recent."""

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._entries: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        if key not in self._entries:
            return None
        value = self._entries[key] = self._entries.pop(key)
        return value

    def put(self, key: Key, value: Value) -> None:
        self._entries.pop(key, None)
        self._entries[key] = value
        if len(self._entries) > self._capacity:
            del self._entries[next(iter(self._entries))]

    def discard(self, key: Key) -> None:
        self._entries.pop(key, None)

    def items(self) -> list[tuple[Key, Value]]:
        return list(self._entries.items())

    def __len__(self) -> int:
        return len(self._entries)
