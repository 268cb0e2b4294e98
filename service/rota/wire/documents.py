"""JSON text to document and back: anything but a JSON object is rejected."""

from __future__ import annotations

import json
from collections.abc import Callable
from json import encoder
from typing import Any

import msgspec

from rota.protocol.errors import ErrorCode, RejectedRequest


def json_writer(*, compact: bool, ascii_only: bool = False) -> Callable[[Any], str]:
    """A function that writes JSON as `json.dumps` does, with a C encoder that is made once.

    With `ascii_only` the text can be encoded whatever it says, half of a character included.

    `json.dumps` and `JSONEncoder.encode` make one for each document, which costs more than to write most of them.
    """
    separators = (",", ":") if compact else (", ", ": ")
    plain = json.JSONEncoder(separators=separators, ensure_ascii=ascii_only, allow_nan=False)
    make: Any = encoder.c_make_encoder  # type: ignore[attr-defined]  # typeshed leaves it out
    if make is None:
        return plain.encode
    item, key = separators
    quote = encoder.encode_basestring_ascii if ascii_only else encoder.encode_basestring
    write = make(None, plain.default, quote, None, key, item, False, False, False)
    return lambda document: "".join(write(document, 0))


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
