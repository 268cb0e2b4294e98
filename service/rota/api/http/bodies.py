"""Request bodies: bounded before they are read, and never waited for without end."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive, Scope

from rota.api.http.rendered import CallerGone, Header, HttpRefusal
from rota.protocol.errors import ErrorCode

BODY_DEADLINE_SECONDS = 30.0
_DISCARD_DEADLINE_SECONDS = 1.0
_CLOSE: tuple[Header, ...] = ((b"connection", b"close"),)
_JSON_TYPES = (b"application/json", b"text/json")


async def receive_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """The whole body, refused by its headers where they suffice, or as soon as it has more than `max_bytes`."""
    declared = check_framing(scope)
    _check_content(scope)
    body = None if declared > max_bytes else await _read(receive, max_bytes)
    if body is None:
        await _discard(receive)
        detail = f"the body must be at most {max_bytes} bytes"
        raise HttpRefusal(413, detail, ErrorCode.PAYLOAD_TOO_LARGE, _CLOSE)
    return body


def check_framing(scope: Scope) -> int:
    """The declared length of the body, 0 where none is; refused where two headers disagree about it.

    A proxy in front of us might believe the other one, and see two requests where we see one.
    """
    length = chunked = None
    for name, value in scope["headers"]:
        if name == b"content-length":
            length = value
        elif name == b"transfer-encoding":
            chunked = value
    if length is None:
        return 0
    if chunked is not None:
        raise HttpRefusal(400, "Content-Length and Transfer-Encoding exclude each other", headers=_CLOSE)
    if not length.isdigit() or len(length) > 18:
        raise HttpRefusal(400, "Content-Length must be a number", headers=_CLOSE)
    return int(length)


def _check_content(scope: Scope) -> None:
    """Only plain JSON.

    A browser may send text and forms across origins without asking, so any web page could otherwise talk
    to a server on its visitor's machine. A type that is not given passes: no browser leaves it out.
    """
    for name, value in scope["headers"]:
        if name == b"content-encoding" and value.lower() != b"identity":
            raise HttpRefusal(415, "compressed bodies are not accepted")
        if name == b"content-type" and not _is_json(value):
            raise HttpRefusal(415, "the body must be JSON, with Content-Type: application/json")


def _is_json(content_type: bytes) -> bool:
    if content_type == b"application/json":
        return True
    media_type = content_type.partition(b";")[0].strip().lower()
    return media_type in _JSON_TYPES or (media_type.startswith(b"application/") and media_type.endswith(b"+json"))


async def _read(receive: Receive, max_bytes: int) -> bytes | None:
    """The body, None once it has become too long."""
    message = await receive()
    body = _chunk(message)
    if not message.get("more_body", False):
        return body if len(body) <= max_bytes else None
    try:
        async with asyncio.timeout(BODY_DEADLINE_SECONDS):
            return await _read_rest(body, receive, max_bytes)
    except TimeoutError:
        raise HttpRefusal(408, "the body did not arrive in time", headers=_CLOSE) from None


async def _read_rest(first: bytes, receive: Receive, max_bytes: int) -> bytes | None:
    chunks, size, more = [first], len(first), True
    while more:
        if size > max_bytes:
            return None
        message = await receive()
        chunks.append(_chunk(message))
        size += len(chunks[-1])
        more = message.get("more_body", False)
    return b"".join(chunks) if size <= max_bytes else None


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
