"""A reverse proxy that changes nothing: it passes each request on whole, `Upgrade` included, on one connection.

It reads where a request ends as Go's `httputil.ReverseProxy` does, by `Content-Length` or chunks, and rejects what it
cannot read. The requests of all its clients follow each other on the connection to the server, as long as that lives.
"""

from __future__ import annotations

import asyncio
import re
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [^\s]+ HTTP/1\.[01]\r\n")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*?)[ \t]*\r\n")


class Unreadable(Exception):
    """The bytes are no request or no answer whose end can be found."""


@dataclass
class ForwardingProxy:
    """Its port, and how much it has passed on."""

    server_port: int
    port: int = 0
    forwarded: int = 0
    """Requests that the server got, each of which had an answer."""
    rejected: int = 0
    connections: int = 0
    """Connections to the server so far."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _upstream: tuple[StreamReader, StreamWriter] | None = None

    async def accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            with suppress(ConnectionError):
                while await self._forward_one(reader, writer):
                    pass
        finally:
            writer.transport.abort()

    def close(self) -> None:
        """End the connection to the server."""
        if self._upstream is not None:
            self._upstream[1].transport.abort()
            self._upstream = None

    async def _forward_one(self, reader: StreamReader, writer: StreamWriter) -> bool:
        """Pass one request and its answer on; returns whether the client's connection goes on."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            fields = _fields(head, _LINE)
            body = await _body(reader, fields)
        except (Unreadable, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            if isinstance(error, asyncio.IncompleteReadError) and not error.partial:
                return False
            self.rejected += 1
            writer.write(BAD_REQUEST)
            return False
        async with self._turn:
            answer = await self._answer(head + body, to_head=head.startswith(b"HEAD "))
        writer.write(answer)
        return True

    async def _answer(self, request: bytes, *, to_head: bool) -> bytes:
        if self._upstream is None:
            self._upstream = await asyncio.open_connection("127.0.0.1", self.server_port)
            self.connections += 1
        reader, writer = self._upstream
        try:
            with suppress(ConnectionError):
                writer.write(request)
                await writer.drain()
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = _fields(head, re.compile(rb"HTTP/1\.1 [1-5][0-9][0-9] [^\r\n]*\r\n"))
                if not head.startswith(b"HTTP/1.1 1"):
                    break
            has_body = not to_head and head[9:12] not in (b"204", b"304")
            answer = head + (await _body(reader, fields) if has_body else b"")
        except (Unreadable, asyncio.IncompleteReadError, ConnectionError):
            self.close()
            return BAD_GATEWAY
        self.forwarded += 1
        if b"close" in fields.get(b"connection", []):
            self.close()
        return answer


def _fields(head: bytes, line: re.Pattern[bytes]) -> dict[bytes, list[bytes]]:
    """The fields by their lower-case names."""
    at, found = line.match(head), dict[bytes, list[bytes]]()
    position = at.end() if at is not None else -1
    while position >= 0 and position < len(head) - 2:
        match = _FIELD.match(head, position)
        if match is None:
            raise Unreadable(head)
        found.setdefault(match[1].lower(), []).append(match[2])
        position = match.end()
    if position < 0:
        raise Unreadable(head)
    return found


async def _body(reader: StreamReader, fields: dict[bytes, list[bytes]]) -> bytes:
    """The bytes of the body, with its chunks and trailers as they are."""
    encodings = fields.get(b"transfer-encoding")
    if encodings is not None:
        if [each.lower() for each in encodings] != [b"chunked"]:
            raise Unreadable(encodings)
        return await _chunks(reader)
    lengths = set(fields.get(b"content-length", [b"0"]))
    length = lengths.pop()
    if lengths or not re.fullmatch(rb"[0-9]{1,9}", length):
        raise Unreadable(length)
    return await reader.readexactly(int(length))


async def _chunks(reader: StreamReader) -> bytes:
    read = b""
    while True:
        line = await reader.readuntil(b"\n")
        size = re.fullmatch(rb"([0-9A-Fa-f]{1,8})[ \t]*(;[^\r\n]*)?\r?\n", line)
        if size is None:
            raise Unreadable(line)
        read += line
        if not int(size[1], 16):
            break
        chunk = await reader.readexactly(int(size[1], 16) + 2)
        if not chunk.endswith(b"\r\n"):
            raise Unreadable(chunk)
        read += chunk
    while True:
        line = await reader.readuntil(b"\n")
        read += line
        if line.strip() == b"":
            return read


@asynccontextmanager
async def forwarding(server_port: int) -> AsyncIterator[ForwardingProxy]:
    """A proxy on a free port, until the block is left."""
    proxy = ForwardingProxy(server_port)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await server.wait_closed()
        proxy.close()
