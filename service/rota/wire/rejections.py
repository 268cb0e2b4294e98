"""What msgspec finds wrong with a document, in the words and with the codes of the protocol. Input is never quoted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from msgspec import ValidationError, inspect

from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.suggestions import unknown

_ERROR = re.compile(r"(?s)(?P<said>.*?)(?: - at (?:`key` in )?`\$(?P<path>[^`]*)`)?")
_UNKNOWN = re.compile(r"(?s)Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_LENGTH = re.compile(r"Expected `(str|bytes|array|object)` of length ([<>])= (\d+)")
_BOUNDS = re.compile(r"Expected `int[^`]*` ([<>])= (-?\d+)")
_KIND = re.compile(r"Expected `([^`]+)`, got ")
_KEPT = 400
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_UNITS = {"str": "be at most {} characters", "bytes": "be at most {} bytes", "array": "have at most {} items"}
_KINDS = {
    "int": "an integer",
    "int | str": "an integer, or a string of its digits",
    "str": "a string",
    "bool": "true or false",
    "bytes": "a base64 string",
    "array": "a list",
    "object": "an object",
    "float": "a number",
}


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
    length = _LENGTH.fullmatch(said)
    is_too_large = length is not None and length[2] == "<"
    code = ErrorCode.PAYLOAD_TOO_LARGE if is_too_large else ErrorCode.INVALID_REQUEST
    return RejectedRequest(code, _detail(error, said, place, kind))


def _detail(error: ValidationError, said: str, place: str, kind: Kind) -> str:
    parent = f"{place}." if place else ""
    if found := _UNKNOWN.fullmatch(said):
        names = {each.encode_name for each in kind.type.fields} if isinstance(kind.type, inspect.StructType) else ()
        return unknown("field", found[1], names).replace("'", f"'{parent}", 1)
    if found := _MISSING.fullmatch(said):
        return f"{parent}{found[1]} is missing"
    if found := _LENGTH.fullmatch(said):
        bound = _UNITS.get(found[1], "have at most {} entries").format(found[3])
        return f"{place} must {bound if found[2] == '<' else bound.replace('most', 'least')}"
    if found := _BOUNDS.fullmatch(said):
        if isinstance(kind.type, inspect.IntType) and None not in (kind.type.ge, kind.type.le):
            return f"{place} must be from {kind.type.ge} to {kind.type.le}"
        return f"{place} must be at {'least' if found[1] == '>' else 'most'} {found[2]}"
    if said.endswith("got `null`") and place and not place.endswith("]"):
        return f"{place} is missing"
    if found := _KIND.match(said):
        expected = found[1].removesuffix(" | null")
        wanted = _KINDS.get(expected) or _KINDS.get(expected.partition(" | ")[0], expected)
        return f"{place} must be {wanted}" if place else "the body must be a JSON object"
    if isinstance(kind.type, inspect.EnumType):
        return f"{place} must be one of {', '.join(kind.type.cls)}"
    if "out of range" in said:
        return f"{place} has a number that is out of range"
    if "base64" in said:
        return f"{place} must be standard base64 with padding"
    if "matching regex" in said:
        return f"{place} {kind.notes.get('rule', 'must be an integer, or a string of its digits')}"
    if isinstance(error.__cause__, ValueError):
        return f"{place} {said}" if said.startswith("must ") else f"{parent}{said}"
    return f"{place} is not valid" if place else "the body is not valid"
