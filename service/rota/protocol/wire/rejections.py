"""What msgspec finds wrong with a document, in the words and with the codes of the protocol. Input is never quoted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from msgspec import ValidationError, inspect

from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.suggestions import unknown

_ERROR = re.compile(r"(?s)(?P<said>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`)?")
_UNKNOWN = re.compile(r"(?s)Object contains unknown field `(.*)`")
_TOO_LONG = re.compile(r"Expected `\w+` of length <= ")
_KEPT = 400
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_WORDS = (
    (r"Object missing required field `(\w+)`", r".\1 is missing"),
    (r"Expected `str` of length <= (\d+)", r" must be at most \1 characters"),
    (r"Expected `bytes` of length <= (\d+)", r" must be at most \1 bytes"),
    (r"Expected `array` of length <= (\d+)", r" must have at most \1 items"),
    (r"Expected `array` of length >= (\d+)", r" must have at least \1 items"),
    (r"Expected `object` of length <= (\d+)", r" must have at most \1 entries"),
    (r"Expected `int` >= (-?\d+)", r" must be at least \1"),
    (r"Expected `int` <= (-?\d+)", r" must be at most \1"),
    (r"Expected .* matching regex .*", " must be an integer, or a string of its digits"),
    (r"Expected .*[^\]], got `null`", " is missing"),
    (r"Expected `int \| str.*", " must be an integer, or a string of its digits"),
    (r"Expected `int.*", " must be an integer"),
    (r"Expected `str.*", " must be a string"),
    (r"Expected `bool.*", " must be true or false"),
    (r"Expected `bytes.*", " must be a base64 string"),
    (r"Expected `array.*", " must be a list"),
    (r"Expected `object.*", " must be an object"),
    (r"Expected `float.*", " must be a number"),
    (r".*out of range.*", " has a number that is out of range"),
    (r".*base64.*", " must be standard base64 with padding"),
    (r".*", " is not valid"),
)
"""What msgspec says about a value, and the end of the detail."""


class Kind(NamedTuple):
    """A type, taken apart."""

    type: inspect.Type
    is_optional: bool
    notes: dict[str, Any]
    """The notes beside the type, of which the outermost ones win."""


def kind_of(found: inspect.Type) -> Kind:
    notes: dict[str, Any] = {}
    is_optional = False
    while True:
        match found:
            case inspect.Metadata():
                notes = (found.extra_json_schema or {}) | (found.extra or {}) | notes
                found = found.type
            case inspect.UnionType(types=types) if any(isinstance(each, inspect.NoneType) for each in types):
                is_optional = True
                kinds = tuple(each for each in types if not isinstance(each, inspect.NoneType))
                found = kinds[0] if len(kinds) == 1 else inspect.UnionType(kinds)
            case _:
                return Kind(found, is_optional, notes)


_described = cache(inspect.type_info)


def _kind_at(struct: type, path: Iterable[str]) -> Kind:
    """The type of the value at a place in a document."""
    kind = kind_of(_described(struct))
    for step in path:
        match kind.type:
            case inspect.StructType(fields=fields):
                types = [each.type for each in fields if each.encode_name == step]
                kind = kind_of(types[0] if types else inspect.AnyType())
            case inspect.VarTupleType(item_type=inner) | inspect.DictType(value_type=inner):
                kind = kind_of(inner)
    return kind


def reject(error: ValidationError, struct: type) -> RejectedRequest:
    """The rejection of a document of this struct, in which msgspec has found this."""
    text = str(error)
    # An unknown name may be as long as the message; the place is behind it.
    matched = _ERROR.fullmatch(text if len(text) <= 2 * _KEPT else text[:_KEPT] + text[-_KEPT:])
    assert matched is not None
    said, place = matched["said"], (matched["path"] or "").removeprefix(".")
    kind = _kind_at(struct, (name or index for name, index in _STEP.findall("." + place)) if place else ())
    if matched["key"] and isinstance(kind.type, inspect.DictType):
        kind, place = kind_of(kind.type.key_type), f"a name in {place}"
    code = ErrorCode.PAYLOAD_TOO_LARGE if _TOO_LONG.match(said) else ErrorCode.INVALID_REQUEST
    return RejectedRequest(code, _detail(said, place, kind))


def _detail(said: str, place: str, kind: Kind) -> str:
    found = _UNKNOWN.fullmatch(said)
    match kind.type:
        case inspect.StructType(fields=fields) if found:
            named = unknown("field", found[1], {each.encode_name for each in fields})
            return named.replace("'", f"'{place}.", 1) if place else named
        case inspect.EnumType(cls=enum):
            return f"{place} must be one of {', '.join(enum)}"
    if "rule" in kind.notes and "matching regex" in said:
        return f"{place} {kind.notes['rule']}"
    pattern, words = next(each for each in _WORDS if re.fullmatch(each[0], said, re.DOTALL))
    subject = place or ("" if words.startswith(".") else "the body")
    return (subject + re.sub(pattern, words, said, count=1, flags=re.DOTALL)).removeprefix(".")
