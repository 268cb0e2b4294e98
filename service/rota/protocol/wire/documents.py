"""JSON text to document and back: anything but a JSON object is rejected."""

from __future__ import annotations

from typing import Any

import msgspec

from rota.protocol.errors import ErrorCode, RejectedRequest


def parse_document(body: bytes) -> dict[str, Any]:
    """A request's body as a JSON object; `INVALID_REQUEST` for anything else. An empty body is `{}`.

    The detail never quotes the input.
    """
    if not body:
        return {}
    try:
        document = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "the body is not valid JSON") from None
    if type(document) is not dict:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "the body must be a JSON object")
    return document


def dump_document(document: dict[str, Any]) -> bytes:
    """Compact UTF-8 JSON."""
    return msgspec.json.encode(document)
