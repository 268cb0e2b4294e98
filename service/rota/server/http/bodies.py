"""Request bodies: bounded before they are read, and never waited for without end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import parse_qsl

from msgspec import Struct
from starlette.types import Message, Receive, Scope

from rota.core.access.budgets import BUDGETS, Share
from rota.core.access.sources import source_of
from rota.protocol.errors import ErrorCode
from rota.protocol.wire.shapes import Shape
from rota.server.http.rendered import CallerGone, Header, HttpRefusal
from rota.server.large import read_large

Decoded = TypeVar("Decoded")


class _NoQuery(Struct, frozen=True):
    """The query string of a call that has no parameters."""


_NO_QUERY = Shape(_NoQuery, closed=True)
BODY_DEADLINE_SECONDS = 30.0
_DISCARD_DEADLINE_SECONDS = 1.0
_CLOSE: tuple[Header, ...] = ((b"connection", b"close"),)
_NEEDS_JSON = "the body must be JSON, with Content-Type: application/json"
_JSON_TYPES = (b"application/json", b"text/json")


async def receive_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """The whole body, refused by its headers where they suffice, or as soon as it has more than `max_bytes`."""
    if _check_head(scope) <= max_bytes:
        message = await receive()
        body: bytes | None = _chunk(message)
        if message.get("more_body", False):
            body = await _read_in_time(body or b"", receive, max_bytes, source_of(_host_of(scope)))
        if body is not None and len(body) <= max_bytes:
            return body
    await _discard(receive)
    detail = f"the body must be at most {max_bytes} bytes"
    raise HttpRefusal(413, detail, ErrorCode.PAYLOAD_TOO_LARGE, _CLOSE)


async def receive_document(
    scope: Scope, receive: Receive, max_bytes: int, decode: Callable[[bytes], Decoded]
) -> Decoded:
    """What `decode` makes of the body, beside the event loop if the body is large."""
    body = await receive_body(scope, receive, max_bytes)
    return await read_large(len(body), lambda: decode(body))


def check_no_query(scope: Scope) -> None:
    """Reject query parameters of a call that has its fields in the body, or has none."""
    if query := scope.get("query_string"):
        _NO_QUERY.from_query(parse_qsl(query.decode("latin-1"), keep_blank_values=True))


def _check_head(scope: Scope) -> int:
    """The declared length; rejects content that is not plain JSON.

    A browser may send text, forms and untyped bytes across origins without asking, so any web page could otherwise
    talk to a server on its visitor's machine.
    """
    declared, is_chunked, typed = 0, False, False
    for name, value in scope["headers"]:
        if name == b"content-length":
            # The parser has rejected anything but one number, and any length beside `Transfer-Encoding`.
            declared = int(value)
        elif name == b"transfer-encoding":
            is_chunked = True
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise HttpRefusal(415, "compressed bodies are not accepted")
        elif name == b"content-type":
            typed = _checked_type(value)
    if not typed and (declared or is_chunked):
        raise HttpRefusal(415, _NEEDS_JSON)
    return declared


def _checked_type(value: bytes) -> bool:
    if not _is_json(value):
        raise HttpRefusal(415, _NEEDS_JSON)
    return True


def _is_json(content_type: bytes) -> bool:
    if content_type == b"application/json":
        return True
    media_type = content_type.partition(b";")[0].strip().lower()
    return media_type in _JSON_TYPES or (media_type.startswith(b"application/") and media_type.endswith(b"+json"))


async def _read_in_time(first: bytes, receive: Receive, max_bytes: int, source: str) -> bytes | None:
    try:
        async with asyncio.timeout(BODY_DEADLINE_SECONDS):
            return await _under_way.read(first, receive, max_bytes, source)
    except TimeoutError:
        raise HttpRefusal(408, "the body did not arrive in time", headers=_CLOSE) from None


class _UnderWay:
    """The bytes of bodies that came in pieces and are not whole yet. One that came in one piece counts for nothing.

    Each body is bounded, but not how many there are: callers that send all but the last byte could take all memory.
    """

    def __init__(self) -> None:
        self.share = BUDGETS.unfinished_bodies
        self.over_budget: Callable[[], object] = lambda: None
        self._bytes = Counter[str]()

    async def read(self, first: bytes, receive: Receive, max_bytes: int, source: str) -> bytes | None:
        """The whole body; None, and nothing kept, where it has more than `max_bytes`."""
        chunks, size, more = [first], len(first), True
        self._bytes[source] += size
        try:
            while more and size <= max_bytes:
                message = await receive()
                chunks.append(_chunk(message))
                size += len(chunks[-1])
                self._bytes[source] += len(chunks[-1])
                if self._is_too_much(source, size):
                    self.over_budget()
                    detail = "too many large bodies are under way"
                    raise HttpRefusal(429, detail, ErrorCode.THROTTLED, _CLOSE)
                more = message.get("more_body", False)
        finally:
            self._bytes[source] -= size
            if not self._bytes[source]:
                del self._bytes[source]
        return b"".join(chunks) if size <= max_bytes else None

    def _is_too_much(self, source: str, size: int) -> bool:
        """Whether there is more than the budget; one body alone never is."""
        of_source, in_all = self._bytes[source], self._bytes.total()
        return in_all > size and (in_all > self.share.in_all or of_source > max(size, self.share.per_source))


_under_way = _UnderWay()
"""One for the process, as its memory is one."""


def bound_bodies(share: Share, over_budget: Callable[[], object]) -> None:
    """Set the budget of the process for bodies that are not whole; `over_budget` is called for each one refused."""
    _under_way.share, _under_way.over_budget = share, over_budget


def _host_of(scope: Scope) -> str:
    """The address that a request comes from, past proxies that are trusted."""
    client = scope.get("client")
    return client[0] if client else ""


async def _discard(receive: Receive) -> None:
    """Read on for a moment without keeping anything.

    Closing on a caller that still sends would reset the connection, and it would never read our answer.
    """
    try:
        async with asyncio.timeout(_DISCARD_DEADLINE_SECONDS):
            more = True
            while more:
                message = await receive()
                more = message["type"] == "http.request" and message.get("more_body", False)
    except TimeoutError:
        return


def _chunk(message: Message) -> bytes:
    if message["type"] == "http.disconnect":
        raise CallerGone
    chunk: bytes = message.get("body", b"")
    return chunk
