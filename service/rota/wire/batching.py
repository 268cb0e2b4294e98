"""Several messages of a session stream in one: most of what a small one costs is being a message."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

MAX_BATCH = 1_000
MAX_BATCH_BYTES = 256 * 1024
"""Far below what either side takes. One that is larger by itself goes alone."""


def take_batch(queue: deque[Any]) -> Any:
    """The next message to send, of at least one that is queued: alone, or as many as go into one."""
    first = queue.popleft()
    if not queue:
        return first
    size = first.ByteSize()
    message = type(first)(batch=[first])
    while queue and len(message.batch) < MAX_BATCH:
        size += queue[0].ByteSize()
        if size > MAX_BATCH_BYTES:
            break
        message.batch.append(queue.popleft())
    return message


def split_batch(message: Any) -> Sequence[Any]:
    """The messages that came as one; a single one is itself."""
    return message.batch or (message,)
