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
    """The bytes of the next message to send, of at least one that is queued: alone, or as many as go into one."""
    batch = [queue.popleft()]
    size = batch[0].ByteSize()
    while queue and len(batch) < MAX_BATCH and (size := size + queue[0].ByteSize()) <= MAX_BATCH_BYTES:
        batch.append(queue.popleft())
    message = batch[0] if len(batch) == 1 else type(batch[0])(batch=batch)
    data: bytes = message.SerializeToString()
    return data


def split_batch(message_type: Any, data: bytes) -> Iterator[bytes]:
    """The bytes of each message of a batch, which is not parsed: parsed it may be 40 times as large.

    Other bytes are a single message. Raises ValueError if anything else is beside a batch, or if it has more than
    `MAX_BATCH` messages.
    """
    tag, end = bytes((message_type.BATCH_FIELD_NUMBER << 3 | _LENGTH_DELIMITED,)), 0
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
