"""JSON text to document and back: anything but a JSON object is rejected."""

from __future__ import annotations

import json
from collections.abc import Callable
from json import encoder, scanner
from typing import Any

from rota.protocol.errors import ErrorCode, RejectedRequest


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


class _InterruptibleDecoder(json.JSONDecoder):
    """Reads texts in C, and what holds them in Python."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]  # typeshed leaves it out


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


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_write = json_writer(compact=True)


def parse_document(body: bytes) -> dict[str, Any]:
    """A request's body as a JSON object; `INVALID_REQUEST` for anything else. An empty body is `{}`.

    The detail never quotes the input. RecursionError is what the parser makes of deep nesting,
    ValueError also of integers with thousands of digits.
    """
    return _parse(_DECODER, body)


def parse_large_document(body: bytes) -> dict[str, Any]:
    """The same, more slowly and in Python, so that other threads run in between.

    The parser in C keeps the interpreter's lock from the first byte to the last.
    """
    return _parse(_InterruptibleDecoder(parse_constant=_refuse_constant), body)


def _parse(decoder: json.JSONDecoder, body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    try:
        text = body.decode()
        # `decode` looks for white space around the document, which costs as much as to parse a small one.
        document, end = decoder.scan_once(text, 0) if text[:1] == "{" else (None, 0)  # type: ignore[attr-defined]
        if end != len(text):
            document = decoder.decode(text)
    except (ValueError, RecursionError, StopIteration):
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "the body is not valid JSON") from None
    if type(document) is not dict:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "the body must be a JSON object")
    return document


def dump_document(document: dict[str, Any]) -> bytes:
    """Compact UTF-8 JSON."""
    return _write(document).encode()
