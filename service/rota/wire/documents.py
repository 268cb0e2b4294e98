"""JSON text to document and back: what is no JSON object is refused, whatever it tries to be."""

from __future__ import annotations

import json
from typing import Any

from rota.protocol.errors import ErrorCode, RejectedRequest


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def parse_document(body: bytes) -> dict[str, Any]:
    """A request's body as a JSON object; `INVALID_REQUEST` for anything else. An empty body is `{}`.

    The detail never quotes the input. RecursionError is what the parser makes of deep nesting,
    ValueError also of integers with thousands of digits.
    """
    if not body:
        return {}
    try:
        document = _DECODER.decode(body.decode())
    except (ValueError, RecursionError):
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "the body is not valid JSON") from None
    if type(document) is not dict:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "the body must be a JSON object")
    return document


def dump_document(document: dict[str, Any]) -> bytes:
    """Compact UTF-8 JSON."""
    return _ENCODER.encode(document).encode()
