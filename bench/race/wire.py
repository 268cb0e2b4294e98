"""Connections that send bytes made beforehand and count answers, so that the client is not what is measured."""

from __future__ import annotations

import asyncio
import struct
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self, cast

from bench.setting import HOST
from tests.support.raw_http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
)

DEADLINE_S = 60.0
_LARGEST_WINDOW = 2**31 - 1
_FIRST_WINDOW = 65_535

OnAnswer = Callable[[bytes | Exception], None]


class Refused(RuntimeError):
    """The server answered with an error."""


@dataclass(slots=True)
class _Waiting:
    """A caller, and how many answers are still to come."""

    answers: int
    on_answer: OnAnswer


class Wire(asyncio.Protocol):
    """One connection. Answers come in the order of the requests."""

    def __init__(self) -> None:
        self._buffer = b""
        self._waiting: deque[_Waiting] = deque()
        self.transport: asyncio.Transport

    @classmethod
    async def open(cls, port: int) -> Self:
        _, wire = await asyncio.get_running_loop().create_connection(cls, HOST, port)
        return wire

    def submit(self, request: bytes, on_answer: OnAnswer, answers: int = 1) -> None:
        """Send; the last of so many answers, or an error, is for `on_answer`. Raises `ConnectionResetError`."""
        if self.transport.is_closing():
            raise ConnectionResetError("the server closed the connection")
        self._waiting.append(_Waiting(answers, on_answer))
        self.transport.write(request)

    def call(self, request: bytes, answers: int = 1) -> asyncio.Future[bytes]:
        """Send; the future holds the last of so many answers."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.submit(request, partial(_settle, future), answers)
        return future

    def close(self) -> None:
        """End the connection as the kernel does for a killed process: without a word of the protocol."""
        self.transport.close()

    @abstractmethod
    def split(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Whole frames, and what is left."""

    def take(self, frame: bytes) -> None:
        """An answer, unless a protocol says otherwise."""
        self.answered(frame)

    def answered(self, frame: bytes | Exception) -> None:
        if not self._waiting:
            # The connection ended, and nothing was asked.
            return
        first = self._waiting[0]
        first.answers -= 1
        if isinstance(frame, Exception) or first.answers == 0:
            self._waiting.popleft()
            first.on_answer(frame)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        frames, self._buffer = self.split(self._buffer + data if self._buffer else data)
        for frame in frames:
            self.take(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        while self._waiting:
            self.answered(exc or ConnectionResetError("the connection ended"))


def _settle(future: asyncio.Future[bytes], answer: bytes | Exception) -> None:
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)


class LengthPrefixed(Wire):
    """Frames behind their length in four bytes: Kafka's and ZooKeeper's."""

    def split(self, data: bytes) -> tuple[list[bytes], bytes]:
        frames, at = [], 0
        while at + 4 <= len(data):
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                break
            frames.append(data[at + 4 : end])
            at = end
        return frames, data[at:]


def prefixed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


class Http(Wire):
    """HTTP/1.1 with a length for each body. A frame is the status and the body."""

    def split(self, data: bytes) -> tuple[list[bytes], bytes]:
        frames: list[bytes] = []
        while True:
            head, blank, rest = data.partition(b"\r\n\r\n")
            if not blank:
                return frames, data
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            if len(rest) < length:
                return frames, data
            frames.append(head[9:12] + rest[:length])
            data = rest[length:]

    def take(self, frame: bytes) -> None:
        self.answered(frame if frame.startswith(b"200") else Refused(frame.decode()))


class Grpc(Wire):
    """Rpcs over HTTP/2, on one connection. Windows are made so large that they never close."""

    def __init__(self) -> None:
        super().__init__()
        self._next_stream = 1
        self._readers: dict[int, OnAnswer] = {}
        self._parts: dict[int, bytes] = {}
        self._spoken: set[int] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        window = struct.pack(">HI", 4, _LARGEST_WINDOW)
        grown = struct.pack(">I", _LARGEST_WINDOW - _FIRST_WINDOW)
        self.transport.write(PREFACE + _frame(SETTINGS, 0, 0, window) + _frame(WINDOW_UPDATE, 0, 0, grown))

    def begin(self, path: str, on_message: OnAnswer) -> int:
        """Begin an rpc; its messages, and an error that ends it, are for `on_message`."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self._readers[stream], self._parts[stream] = on_message, b""
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
        rest = {"content-type": "application/grpc", "te": "trailers"}
        block = b"".join(_literal(name, value) for name, value in (fields | rest).items())
        self.transport.write(_frame(HEADERS, END_HEADERS, stream, block))
        return stream

    def send(self, stream: int, message: bytes, *, is_last: bool = False) -> None:
        self.transport.write(message_frame(stream, message, END_STREAM if is_last else 0))

    async def unary(self, path: str, message: bytes) -> bytes:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.submit_unary(path, message, partial(_settle, future))
        return await future

    def submit_unary(self, path: str, message: bytes, on_answer: OnAnswer) -> None:
        """A call whose answer, or an error, is for `on_answer`."""
        self.send(self.begin(path, on_answer), message, is_last=True)

    def answer_calls_with(self, path: str) -> int:
        """Begin a stream of messages that answer `call`."""
        return self.begin(path, self.answered)

    def split(self, data: bytes) -> tuple[list[bytes], bytes]:
        frames, at = [], 0
        while at + 9 <= len(data):
            end = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if end > len(data):
                break
            frames.append(data[at:end])
            at = end
        return frames, data[at:]

    def take(self, frame: bytes) -> None:
        kind, flags, stream = frame[3], frame[4], int.from_bytes(frame[5:9], "big")
        if kind == DATA:
            self._take_data(stream, frame[9:])
        elif kind == SETTINGS and not flags & ACK:
            self.transport.write(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self.transport.write(_frame(PING, ACK, 0, frame[9:]))
        if stream and flags & END_STREAM and kind in (DATA, HEADERS):
            reader = self._readers.pop(stream, None)
            self._parts.pop(stream, None)
            if reader is not None and stream not in self._spoken:
                reader(Refused(f"the rpc ended without a message: {frame[9:]!r}"))
            self._spoken.discard(stream)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for reader in self._readers.values():
            reader(exc or ConnectionResetError("the connection ended"))

    def _take_data(self, stream: int, data: bytes) -> None:
        parts = self._parts[stream] + data
        while len(parts) >= 5 and len(parts) >= (end := 5 + int.from_bytes(parts[1:5], "big")):
            self._spoken.add(stream)
            self._readers[stream](parts[5:end])
            parts = parts[end:]
        self._parts[stream] = parts


def message_frame(stream: int, message: bytes, flags: int = 0) -> bytes:
    """A gRPC message in a frame of its own. It must be small, as the windows of the server are not looked at."""
    return _frame(DATA, flags, stream, struct.pack(">BI", 0, len(message)) + message)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return b"".join((len(payload).to_bytes(3, "big"), bytes([kind, flags]), stream.to_bytes(4, "big"), payload))


def _literal(name: str, value: str) -> bytes:
    """A header that is not indexed (RFC 7541, 6.2.2), neither part in Huffman's code."""
    return b"\x00" + b"".join(bytes([len(part)]) + part.encode() for part in (name, value))


def message(fields: Mapping[int, int | bytes | str | list[bytes]]) -> bytes:
    """A protobuf message of these fields: numbers as varints, bytes and text behind their length."""
    out = bytearray()
    for number, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, int):
                out += _varint(number << 3) + _varint(each)
            else:
                data = each.encode() if isinstance(each, str) else each
                out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return bytes(out)


def fields_of(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message of varints and of bytes behind their length."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        value, at = _read_varint(data, at)
        if tag & 7 == 0:
            yield tag >> 3, value
        elif tag & 7 == 2:
            yield tag >> 3, data[at : at + value]
            at += value
        else:
            raise ValueError(f"field {tag >> 3} has the wire type {tag & 7}")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1
