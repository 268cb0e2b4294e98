"""A cheap HTTP/1.1 client: one connection, one request at a time, nothing but status and JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from bench.servers import HOST


def request_bytes(path: str, document: dict[str, Any], token: str = "") -> bytes:
    """A POST as it goes over the wire, with an API token if one is given."""
    body = json.dumps(document, separators=(",", ":")).encode()
    proof = f"Authorization: Bearer {token}\r\n" if token else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\n{proof}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection(asyncio.Protocol):
    """`post` may be called again as soon as it has returned."""

    def __init__(self, token: str = "") -> None:
        self._token = token
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._answer: asyncio.Future[tuple[int, Any]] | None = None

    @classmethod
    async def open(cls, port: int, token: str = "") -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(lambda: cls(token), HOST, port)
        return connection

    async def post(self, path: str, document: dict[str, Any]) -> tuple[int, Any]:
        """The answer's status and document."""
        assert self._transport is not None
        assert self._answer is None or self._answer.done(), "one request at a time"
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request_bytes(path, document, self._token))
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, blank, rest = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((int(head[9:12]), json.loads(rest[:length])))
