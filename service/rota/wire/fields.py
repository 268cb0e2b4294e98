"""The kinds of values a JSON document holds: each reads, writes and describes itself.

One declaration (see `shapes.py`) thus gives the server's decoder, the SDK's encoder and the OpenAPI schema.
Readers raise `RejectedRequest` with a detail that starts with a verb ("must be a string"); the record or
list around it puts the place in front. They never quote what they were given.
"""

# ruff: noqa: ARG002 — every kind of value has the same signature, though not all need the limits.
from __future__ import annotations

import binascii
import re
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import MAX_SAFE_INTEGER, MAX_WAIT_MS, Limits

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

_BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

Bound = int | str
"""A number, or the name of the field of `Limits` that holds it."""

Schema = dict[str, Any]


class Field(Protocol):
    """A kind of value: `decode` checks what came in, `encode` trusts what goes out."""

    def decode(self, value: Any, limits: Limits) -> Any: ...

    def encode(self, value: Any) -> Any: ...

    def schema(self, limits: Limits) -> Schema: ...


def invalid(detail: str) -> RejectedRequest:
    return RejectedRequest(ErrorCode.INVALID_REQUEST, detail)


def too_large(detail: str) -> RejectedRequest:
    return RejectedRequest(ErrorCode.PAYLOAD_TOO_LARGE, detail)


def resolve(bound: Bound, limits: Limits) -> int:
    if isinstance(bound, int):
        return bound
    found: int = getattr(limits, bound)
    return found


def is_storable(text: str) -> bool:
    """No NUL, which Postgres text cannot hold, and no lone surrogate, which UTF-8 cannot."""
    if "\x00" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Text:
    """A string. `check` is one of `protocol.ids`, `pattern` the same rule for the schema."""

    max_chars: Bound = 249
    check: Callable[[str], None] | None = None
    pattern: str | None = None

    def decode(self, value: Any, limits: Limits) -> str:
        if type(value) is not str:
            raise invalid("must be a string")
        if self.check is not None:
            self.check(value)
        elif len(value) > resolve(self.max_chars, limits):
            raise too_large(f"must be at most {resolve(self.max_chars, limits)} characters")
        elif not is_storable(value):
            raise invalid("must be Unicode text without NUL")
        return value

    def encode(self, value: str) -> str:
        return value

    def schema(self, limits: Limits) -> Schema:
        if self.pattern is not None:
            return {"type": "string", "pattern": f"^{self.pattern}$"}
        return {"type": "string", "maxLength": resolve(self.max_chars, limits)}


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number within bounds; a bool or a float is none. `code` is what a number out of bounds means."""

    minimum: int = 0
    maximum: Bound = MAX_SAFE_INTEGER
    code: ErrorCode = ErrorCode.INVALID_REQUEST

    def decode(self, value: Any, limits: Limits) -> int:
        if type(value) is not int:
            raise invalid("must be an integer")
        maximum = resolve(self.maximum, limits)
        if not self.minimum <= value <= maximum:
            raise RejectedRequest(self.code, f"must be from {self.minimum} to {maximum}")
        return value

    def encode(self, value: int) -> int:
        return value

    def schema(self, limits: Limits) -> Schema:
        return {"type": "integer", "minimum": self.minimum, "maximum": resolve(self.maximum, limits)}


_DIGITS = "0|[1-9][0-9]{0,18}"
_IS_DIGITS = re.compile(_DIGITS)


@dataclass(frozen=True, slots=True)
class Integer64:
    """A whole number of 64 bits. Above 2^53 - 1 it is a string of digits, and below it may be one, as in protobuf's
    JSON: readers that know only doubles would change the number.
    """

    minimum: int = 0

    def decode(self, value: Any, limits: Limits) -> int:
        if type(value) is int:
            number, maximum = value, MAX_SAFE_INTEGER
        elif type(value) is str and _IS_DIGITS.fullmatch(value):
            number, maximum = int(value), INT64_MAX
        else:
            raise invalid("must be an integer, or a string of its digits")
        if maximum < number <= INT64_MAX:
            raise invalid(f"must be a string of digits above {MAX_SAFE_INTEGER}")
        if not self.minimum <= number <= INT64_MAX:
            raise invalid(f"must be from {self.minimum} to {INT64_MAX}")
        return number

    def encode(self, value: int) -> int | str:
        return value if value <= MAX_SAFE_INTEGER else str(value)

    def schema(self, limits: Limits) -> Schema:
        number = {"type": "integer", "minimum": self.minimum, "maximum": MAX_SAFE_INTEGER}
        return {"anyOf": [number, {"type": "string", "pattern": f"^({_DIGITS})$"}]}


_WHOLE = Integer()


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a call may stay parked, in milliseconds. Longer than the server allows is cut, not refused."""

    def decode(self, value: Any, limits: Limits) -> int:
        return min(_WHOLE.decode(value, limits), MAX_WAIT_MS)

    def encode(self, value: int) -> int:
        return value

    def schema(self, limits: Limits) -> Schema:
        return _WHOLE.schema(limits)


@dataclass(frozen=True, slots=True)
class Boolean:
    def decode(self, value: Any, limits: Limits) -> bool:
        if type(value) is not bool:
            raise invalid("must be true or false")
        return value

    def encode(self, value: bool) -> bool:
        return value

    def schema(self, limits: Limits) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Octets:
    """Bytes: in JSON standard base64 with padding, as they are where the wire knows bytes (`protobuf.py`).

    The size is checked before anything is decoded.
    """

    max_bytes: Bound = "request_max_bytes"

    def decode(self, value: Any, limits: Limits) -> bytes:
        if type(value) is bytes:
            if len(value) > resolve(self.max_bytes, limits):
                raise self._too_large(limits)
            return value
        if type(value) is not str:
            raise invalid("must be a base64 string")
        if len(value) > self._max_chars(limits):
            raise self._too_large(limits)
        try:
            octets = a2b_base64(value, strict_mode=True)
        except (binascii.Error, ValueError):
            raise invalid("must be standard base64 with padding") from None
        if len(octets) > resolve(self.max_bytes, limits):
            raise self._too_large(limits)
        return octets

    def encode(self, value: bytes) -> str:
        return b64encode(value).decode("ascii")

    def schema(self, limits: Limits) -> Schema:
        return {
            "type": "string",
            "contentEncoding": "base64",
            "pattern": _BASE64,
            "maxLength": self._max_chars(limits),
        }

    def _max_chars(self, limits: Limits) -> int:
        return (resolve(self.max_bytes, limits) + 2) // 3 * 4

    def _too_large(self, limits: Limits) -> RejectedRequest:
        return too_large(f"must be at most {resolve(self.max_bytes, limits)} bytes")


@dataclass(frozen=True, slots=True)
class Code:
    """An error code by name, inside a reply."""

    def decode(self, value: Any, limits: Limits) -> ErrorCode:
        try:
            return ErrorCode(value)
        except ValueError:
            raise invalid("must be an error code") from None

    def encode(self, value: ErrorCode) -> str:
        return value.value

    def schema(self, limits: Limits) -> Schema:
        return {"$ref": "#/components/schemas/ErrorCode"}


@dataclass(frozen=True, slots=True)
class AnyObject:
    """A JSON object that is passed through as it is."""

    def decode(self, value: Any, limits: Limits) -> dict[str, Any]:
        if type(value) is not dict:
            raise invalid("must be an object")
        return value

    def encode(self, value: dict[str, Any]) -> dict[str, Any]:
        return value

    def schema(self, limits: Limits) -> Schema:
        return {"type": "object", "additionalProperties": True}


@dataclass(frozen=True, slots=True)
class TextMap:
    """An object of strings; in memory, pairs in the order of their keys."""

    max_entries: int
    key: Text
    value: Text

    def decode(self, value: Any, limits: Limits) -> tuple[tuple[str, str], ...]:
        if type(value) is not dict:
            raise invalid("must be an object of strings")
        if len(value) > self.max_entries:
            raise too_large(f"must have at most {self.max_entries} entries")
        return tuple(sorted((self.key.decode(k, limits), self.value.decode(v, limits)) for k, v in value.items()))

    def encode(self, value: tuple[tuple[str, str], ...]) -> dict[str, str]:
        return dict(value)

    def schema(self, limits: Limits) -> Schema:
        return {
            "type": "object",
            "maxProperties": self.max_entries,
            "propertyNames": self.key.schema(limits),
            "additionalProperties": self.value.schema(limits),
        }


_INTEGER_TEXT = re.compile(r"-?[0-9]{1,17}")


def integer_from_text(text: str) -> int | str:
    """A query parameter that should be a number; any other value stays text, for `Integer` to reject."""
    return int(text) if _INTEGER_TEXT.fullmatch(text) else text
