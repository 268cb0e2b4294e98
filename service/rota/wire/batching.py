"""Several messages of a session stream in one: most of what a small one costs is being a message."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
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


def split_batch(message_type: Any, data: bytes) -> Iterator[bytes]:
    """The bytes of each message of a batch, which is not parsed: parsed it may be 40 times as large.

    Other bytes are a single message. Raises ValueError if anything else is beside a batch, or if it has more than
    `MAX_BATCH` messages.
    """
    tag, end = _varint(message_type.BATCH_FIELD_NUMBER << 3 | _LENGTH_DELIMITED), 0
    if not data.startswith(tag):
        return iter((data,))
    places: list[slice] = []
    while end < len(data):
        size, begin = read_varint(data, end + len(tag))
        if not data.startswith(tag, end) or begin == end + len(tag) or begin + size > len(data):
            raise ValueError("this is no batch alone")
        if len(places) == MAX_BATCH:
            raise ValueError("there are too many messages")
        end = begin + size
        places.append(slice(begin, end))
    return (data[place] for place in places)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number there, as protobuf writes it, and where it ends; 0 and `at` where it is none of up to four bytes."""
    number = 0
    for index, byte in enumerate(data[at : at + 4]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, at + index + 1
    return 0, at


def _varint(number: int) -> bytes:
    """A number that is not negative, as protobuf writes it: seven bits in each byte, the lowest first."""
    if number < 0x80:
        return _SMALL[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    return bytes((number & 0x7F | 0x80,)) + _varint(number >> 7)


_SMALL = [bytes((number,)) for number in range(0x80)]
