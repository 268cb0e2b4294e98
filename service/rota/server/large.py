"""Large messages: they are parsed on a thread of their own, so that the event loop keeps answering."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rota.protocol.errors import RejectedRequest

ON_THE_LOOP_BYTES = 256 * 1024
"""What the event loop parses itself: some milliseconds' worth."""
_parsing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rota-large-messages")
"""One thread: several would take the interpreter's lock from the event loop, and be no faster."""

Read = TypeVar("Read")


def is_large(size: int) -> bool:
    """Whether a message of `size` bytes is read on that thread."""
    return size > ON_THE_LOOP_BYTES


async def read_large(size: int, read: Callable[[], Read]) -> Read:
    """What `read` returns or raises, for a message of `size` bytes. A small one is read here and now.

    The loop waits for each part of `read` that is in C and keeps the interpreter's lock (ADR 113).
    It keeps the message's bytes while others are read before it. Its objects may take 40 times as much.
    """
    return await begin_reading(read) if is_large(size) else read()


def begin_reading(read: Callable[[], Read]) -> asyncio.Future[Read]:
    """The same for a message that is large: it is read after those that are on their way to the thread already."""
    return asyncio.get_running_loop().run_in_executor(_parsing, _without_frames, read)


def _without_frames(read: Callable[[], Read]) -> Read:
    """Drop the frames of a rejection: they keep the parsed message until its caller has a turn of the event loop."""
    try:
        return read()
    except RejectedRequest as rejected:
        rejected.__context__ = None
        raise rejected.with_traceback(None) from None
