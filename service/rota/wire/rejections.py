"""What msgspec finds wrong with a document, in the words and with the codes of the protocol. Input is never quoted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from msgspec import ValidationError

from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.suggestions import unknown
from rota.protocol.values import Within


class Rule(NamedTuple):
    """What is known of a place in a document: the names of the object there, or the bounds or choices of the value."""

    names: frozenset[str] = frozenset()
    within: Within | None = None
    choices: tuple[str, ...] = ()


_ERROR = re.compile(r"(?s)(?P<said>.*?)(?: - at (?:`key` in )?`\$(?P<path>[^`]*)`)?")
_UNKNOWN = re.compile(r"(?s)Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_LENGTH = re.compile(r"Expected `(str|bytes|array|object)` of length <= (\d+)")
_BOUNDS = re.compile(r"Expected `int[^`]*` ([<>])= (-?\d+)")
_KIND = re.compile(r"Expected `([^`]+)`, got ")
_KEPT = 400
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_UNITS = {"str": "be at most {} characters", "bytes": "be at most {} bytes", "array": "have at most {} items"}
_KINDS = {
    "int": "an integer",
    "str": "a string",
    "bool": "true or false",
    "bytes": "a base64 string",
    "array": "a list",
    "object": "an object",
    "float": "a number",
}


def reject(error: ValidationError, rule_at: Callable[[tuple[str, ...]], Rule], limits: Limits) -> RejectedRequest:
    """The rejection of a document in which msgspec has found this."""
    text = str(error)
    # An unknown name may be as long as the message; the place is behind it.
    matched = _ERROR.fullmatch(text if len(text) <= 2 * _KEPT else text[:_KEPT] + text[-_KEPT:])
    assert matched is not None
    said, place = matched["said"], (matched["path"] or "").removeprefix(".")
    rule = rule_at(tuple(name or index for name, index in _STEP.findall("." + place)) if place else ())
    if found := _UNKNOWN.fullmatch(said):
        said = unknown("field", found[1], rule.names)
        return _invalid(said.replace("'", f"'{place}.", 1) if place else said)
    if found := _MISSING.fullmatch(said):
        return _invalid(f"{place}.{found[1]} is missing" if place else f"{found[1]} is missing")
    if found := _LENGTH.fullmatch(said):
        bound = _UNITS.get(found[1], "have at most {} entries").format(found[2])
        return RejectedRequest(ErrorCode.PAYLOAD_TOO_LARGE, f"{place} must {bound}")
    bounds = _BOUNDS.fullmatch(said)
    if bounds and rule.within is None:
        return _invalid(f"{place} must be at {'least' if bounds[1] == '>' else 'most'} {bounds[2]}")
    if bounds and rule.within is not None:
        most = rule.within.most
        highest = most if isinstance(most, int) else getattr(limits, most)
        return RejectedRequest(rule.within.code, f"{place} must be from {rule.within.least} to {highest}")
    if found := _KIND.match(said):
        kinds = [each for each in found[1].split(" | ") if each != "null"]
        if kinds == ["int", "str"]:
            return _invalid(f"{place} must be an integer, or a string of its digits")
        kind = _KINDS.get(kinds[0], kinds[0])
        return _invalid(f"{place} must be {kind}" if place else "the body must be a JSON object")
    if rule.choices:
        return _invalid(f"{place} must be one of {', '.join(rule.choices)}")
    if "out of range" in said:
        return _invalid(f"{place} has a number that is out of range")
    if "base64" in said:
        return _invalid(f"{place} must be standard base64 with padding")
    if "matching regex" in said:
        text = "Unicode text without NUL" if "x00" in said else "an integer, or a string of its digits"
        return _invalid(f"{place} must be {text}")
    if isinstance(error.__cause__, ValueError):
        parent = f"{place}." if place else ""
        return _invalid(f"{parent}{said}")
    return _invalid(f"{place} is not valid" if place else "the body is not valid")


def _invalid(detail: str) -> RejectedRequest:
    return RejectedRequest(ErrorCode.INVALID_REQUEST, detail)
