"""A cheap HTTP/1.1 client: one connection, one request at a time, nothing but status and JSON."""

from __future__ import annotations

import asyncio
import json
import re
from functools import lru_cache
from typing import Any, cast

from bench.setting import HOST
from rota.protocol.wire.documents import dump_document

_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


def request_bytes(path: str, document: dict[str, Any], token: str = "") -> bytes:
    """A POST as it goes over the wire, with an API token if one is given."""
    body = dump_document(document)
    return b"%b%d\r\n\r\n%b" % (_head_of(path, token), len(body), body)


@lru_cache(maxsize=10_000)
def _head_of(path: str, token: str) -> bytes:
    """The head of a POST up to the number of its length."""
    proof = f"Authorization: Bearer {token}\r\n" if token else ""
    return (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\n{proof}Content-Type: application/json\r\nContent-Length: "
    ).encode()


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
        if self._buffer:
            data = self._buffer + data
        self._buffer = data
        end_of_head = data.find(_END_OF_HEAD)
        if end_of_head < 0:
            return
        found = _LENGTH.search(data, 0, end_of_head)
        assert found is not None, data
        start = end_of_head + len(_END_OF_HEAD)
        end = start + int(found[1])
        if len(data) < end:
            return
        self._buffer = data[end:]
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((int(data[9:12]), json.loads(data[start:end].decode())))
