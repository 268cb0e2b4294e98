"""Connections of hostile clients: as many as one likes, cheap, and free to say anything or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import cast

HOST = "127.0.0.1"
AT_ONCE = 500
"""Connections that are opened together: fewer than the server's backlog."""


class Line(asyncio.Protocol):
    """One connection. Keeps the beginning of what comes back."""

    def __init__(self) -> None:
        self.received = b""
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.received = (self.received + data)[:10_000]

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._read_the_rest()
        self.closed.set()

    def _read_the_rest(self) -> None:
        """An answer may have reached a client that still sends: where asyncio cannot write, it stops reading too."""
        plug = self.transport.get_extra_info("socket")
        with socket.socket(fileno=os.dup(plug.fileno())) as same, contextlib.suppress(OSError):
            self.data_received(same.recv(10_000))

    @property
    def status(self) -> int:
        """Of the answer, 0 while there is none."""
        return int(self.received[9:12] or 0) if self.received.startswith(b"HTTP/1.1 ") else 0

    def say(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def stop_reading(self) -> None:
        self.transport.pause_reading()

    def reset(self) -> None:
        """End as a machine does that was switched off and on again: RST instead of FIN."""
        plug = self.transport.get_extra_info("socket")
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


@asynccontextmanager
async def lines(port: int, count: int) -> AsyncIterator[list[Line]]:
    """So many connections, which end with the block if they have not before."""
    allow_files(count + 1_000)
    opened: list[Line] = []
    try:
        while len(opened) < count:
            opened += await asyncio.gather(*(_open(port) for _ in range(min(AT_ONCE, count - len(opened)))))
        yield opened
    finally:
        for line in opened:
            line.transport.abort()


async def all_closed(opened: Sequence[Line], deadline_s: float) -> None:
    """Return once the server has closed every one of them."""
    async with asyncio.timeout(deadline_s):
        for line in opened:
            await line.closed.wait()


async def all_answered(opened: Sequence[Line], deadline_s: float) -> None:
    """Return once every one of them has an answer, or was closed."""
    await until(lambda: all(line.status or line.closed.is_set() for line in opened), deadline_s)


async def until(condition: Callable[[], bool], deadline_s: float) -> None:
    """Return once it holds."""
    async with asyncio.timeout(deadline_s):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


def allow_files(count: int) -> None:
    """Let this process, and those that it starts from now on, open so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (count if hard == resource.RLIM_INFINITY else min(count, hard), hard)
        )


async def _open(port: int) -> Line:
    _, line = await asyncio.get_running_loop().create_connection(Line, HOST, port)
    return line
