"""A client of HTTP/2 that sends what no library would: rpcs with messages that never end."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType, TracebackType
from typing import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
ACK, END_STREAM, END_HEADERS = 1, 1, 4
FRAME_BYTES = 16_384
"""The most that a receiver must take in one frame."""
INITIAL_WINDOW = 65_535
INITIAL_WINDOW_SETTING = 4
DEADLINE_S = 30.0
EMPTY: Mapping[str, str] = MappingProxyType({})


class RawHttp2:
    """One connection. It keeps the windows that the server grants, as it must, and answers pings."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._next_stream = 1
        self._connection_window = self._initial_window = INITIAL_WINDOW
        self._windows: dict[int, int] = {}
        self._left: dict[int, memoryview] = {}
        """What the streams have not sent yet."""
        self.ended: set[int] = set()
        """Streams that the server has ended or reset."""
        self._changed = asyncio.Event()
        self.sent = 0
        """Bytes of messages."""
        self.is_closed = False

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        self._writer.write(PREFACE + _frame(SETTINGS, 0, 0, b""))
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        await asyncio.gather(self._reading, return_exceptions=True)

    def begin(self, path: str, length: int, present: bytes) -> int:
        """Begin an rpc with a message of `length` bytes of which these are sent, as the server's windows allow."""
        stream = self.head(path)
        self._windows[stream] = self._initial_window
        self._left[stream] = _framed(length, present)
        self._send(stream)
        return stream

    def head(self, path: str, metadata: Mapping[str, str] = EMPTY) -> int:
        """Begin an rpc, without its message."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
        block = b"".join(_literal(*each) for each in {**fields, "content-type": "application/grpc", **metadata}.items())
        self.send(HEADERS, END_HEADERS, stream, block + _literal("te", "trailers"))
        return stream

    def send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Send a frame whatever the server allows, unless it has closed the connection."""
        if not self.is_closed:
            self._writer.write(_frame(kind, flags, stream, payload))

    async def drained(self) -> None:
        """Return once the kernel has taken nearly all that was sent, or the connection is closed."""
        with contextlib.suppress(OSError):
            await self._writer.drain()

    async def until_ended(self, streams: int) -> None:
        """Return once the server has ended so many streams."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.ended) < streams:
                self._changed.clear()
                await self._changed.wait()

    def _send(self, stream: int) -> None:
        left = self._left[stream]
        while left and min(self._connection_window, self._windows[stream]) > 0:
            size = min(FRAME_BYTES, len(left), self._connection_window, self._windows[stream])
            self._writer.write(_frame(DATA, 0, stream, left[:size]))
            left = left[size:]
            self.sent += size
            self._connection_window -= size
            self._windows[stream] -= size
        self._left[stream] = left

    async def _read(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                length, kind, flags, stream = int.from_bytes(head[:3], "big"), head[3], head[4], head[5:]
                payload = await self._reader.readexactly(length)
                self._take(kind, flags, int.from_bytes(stream, "big"), payload)
                await self._writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            self.is_closed = True

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            self._set(payload)
            self._writer.write(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._writer.write(_frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            self._grow(stream, int.from_bytes(payload, "big"))
        elif stream and (flags & END_STREAM or kind == RESET):
            self.ended.add(stream)
            self._changed.set()
            self._left[stream] = memoryview(b"")

    def _set(self, payload: bytes) -> None:
        for number, value in struct.iter_unpack(">HI", payload):
            if number == INITIAL_WINDOW_SETTING:
                grown, self._initial_window = value - self._initial_window, value
                for stream in self._windows:
                    self._windows[stream] += grown
        for stream in self._left:
            self._send(stream)

    def _grow(self, stream: int, by: int) -> None:
        if stream == 0:
            self._connection_window += by
        elif stream in self._windows:
            self._windows[stream] += by
        for each in self._left if stream == 0 else (stream,):
            if each in self._left:
                self._send(each)


@lru_cache(2)
def _framed(length: int, present: bytes) -> memoryview:
    """The beginning of a message. Many rpcs may share it, which is of any size."""
    return memoryview(struct.pack(">BI", 0, length) + present)


def _frame(kind: int, flags: int, stream: int, payload: bytes | memoryview) -> bytes:
    return b"".join((len(payload).to_bytes(3, "big"), bytes([kind, flags]), stream.to_bytes(4, "big"), payload))


def _literal(name: str, value: str) -> bytes:
    """A header that is not indexed (RFC 7541, 6.2.2), neither part in Huffman's code."""
    return b"\x00" + b"".join(bytes([len(part)]) + part.encode() for part in (name, value))
