"""Things that one connection carries again and again: each is written once, and a number from then on.

Both ends have a table of what the connection has carried, in its order. A message is a flag, a count, so many numbers,
and lines: those of things that the message adds to the table. With the flag the reader forgets its table first, as the
writer did. So a message may be read only after all messages before it, and the tables end with their connection.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from rota.wire.envelopes import MalformedEnvelope

MOST = 10_000
"""Things in a table."""
MOST_BYTES = 4 * 1024 * 1024
"""Of their lines. A message is added to a table that has less, so it may have more by one message."""
Thing = TypeVar("Thing")
_HEAD = struct.Struct("=?I")
_SEPARATOR = b"\n"


class NumberedWriter(Generic[Thing]):
    """One end. Things are the same if they are the same object: a hash of all fields takes longer than to write it."""

    def __init__(self, write: Callable[[Thing], bytes]) -> None:
        """`write` makes a line of a thing: without a line break."""
        self._write = write
        self._numbers: dict[int, int] = {}
        """By the `id` of things that `_kept` keeps alive."""
        self._kept: list[Thing] = []
        self._bytes = 0

    def pack(self, things: Sequence[Thing]) -> bytes:
        """The next message."""
        is_new = len(self._kept) >= MOST or self._bytes >= MOST_BYTES
        if is_new:
            self._numbers.clear()
            self._kept.clear()
            self._bytes = 0
        known, numbers, lines = self._numbers, [], []
        for thing in things:
            number = known.get(id(thing))
            if number is None:
                number = known[id(thing)] = len(self._kept)
                self._kept.append(thing)
                line = self._write(thing)
                self._bytes += len(line)
                lines.append(line)
            numbers.append(number)
        count = len(numbers)
        return _HEAD.pack(is_new, count) + struct.pack(f"={count}I", *numbers) + _SEPARATOR.join(lines)


class NumberedReader(Generic[Thing]):
    """The other end."""

    def __init__(self, read: Callable[[bytes], Thing]) -> None:
        """`read` raises `MalformedEnvelope`."""
        self._read = read
        self._table: list[Thing] = []

    def unpack(self, data: bytes) -> list[Thing]:
        """Raises `MalformedEnvelope` for what no writer sends; then the connection is of no use any more."""
        table = self._table
        try:
            is_new, count = _HEAD.unpack_from(data)
            numbers = struct.unpack_from(f"={count}I", data, _HEAD.size)
            end = _HEAD.size + 4 * count
            if is_new:
                table.clear()
            if len(data) > end:
                table += [self._read(line) for line in data[end:].split(_SEPARATOR)]
            return [table[number] for number in numbers]
        except (struct.error, IndexError) as error:
            raise MalformedEnvelope(f"not a numbered message: {type(error).__name__}") from error
