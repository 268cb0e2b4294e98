"""Several messages of a session stream in one: most of what a small one costs is being a message."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

MAX_BATCH = 1_000
MAX_BATCH_BYTES = 256 * 1024
"""Far below what either side takes. One that is larger by itself goes alone."""
_LENGTH_DELIMITED = 2
"""How protobuf marks a field that is a message: its size follows."""


def dump_next(queue: deque[Any]) -> bytes:
    """The bytes of the next message to send, of at least one that is queued: alone, or as many as go into one.

    Those of a batch are written out as protobuf does it. To append them to a message would copy each of them, and take
    its size before: half of what sending costs.
    """
    first = queue.popleft()
    data: bytes = first.SerializeToString()
    if not queue:
        return data
    tag, size, count = _varint(first.BATCH_FIELD_NUMBER << 3 | _LENGTH_DELIMITED), len(data), 1
    parts = [tag, _varint(size), data]
    while queue and count < MAX_BATCH:
        data = queue[0].SerializeToString()
        size += len(data)
        if size > MAX_BATCH_BYTES:
            break
        queue.popleft()
        count += 1
        parts += (tag, _varint(len(data)), data)
    return b"".join(parts)


def split_batch(message: Any) -> Sequence[Any]:
    """The messages that came as one; a single one is itself."""
    return message.batch or (message,)


def _varint(number: int) -> bytes:
    """A number that is not negative, as protobuf writes it: seven bits in each byte, the lowest first."""
    if number < 0x80:
        return _SMALL[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    return bytes((number & 0x7F | 0x80,)) + _varint(number >> 7)


_SMALL = [bytes((number,)) for number in range(0x80)]
