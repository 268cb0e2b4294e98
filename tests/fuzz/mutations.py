"""Seeded changes of bytes and of JSON documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

import msgspec

MAX_CHANGES = 4

_INTERESTING = (b"\x00", b"\xff", b"\r\n", b"\n", b"\x7f", b"%", b"%00", b"\xf0\x9f\x92\xa9", b"\x80", b"0" * 40, b" ")
_Change = Callable[[Random, bytearray], None]

_VALUES: tuple[Callable[[Random], Any], ...] = (
    lambda _: None,
    lambda _: True,
    lambda _: "",
    lambda _: [],
    lambda _: {},
    lambda random: random.choice((-1, 0, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400)),
    lambda random: random.choice((0.5, -0.0, 1e308, float("nan"), float("inf"))),
    lambda random: random.choice(("\x00", "\ud800", "a\r\nb", "ä" * 300, "%2e%2e", "\u202e", "x" * 10_000, "=", "-1")),
    lambda random: nested(random.choice((3, 60, 1_100))),
    lambda random: [random.randint(-1, 3)] * random.choice((1, 50, 2_000)),
    lambda random: {f"k{number}": number for number in range(random.choice((1, 40, 1_000)))},
)


def nested(depth: int) -> list[Any]:
    """A list in a list in a list."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def mutated(random: Random, data: bytes) -> bytes:
    """The bytes with a few changes."""
    changed = bytearray(data)
    for _ in range(random.randint(1, MAX_CHANGES)):
        random.choice(_CHANGES)(random, changed)
    return bytes(changed)


def mutated_document(random: Random, document: Any) -> Any:
    """A copy of a JSON document in which a few places hold another value, or a copy of another part."""
    changed = [_copy(document)]
    for _ in range(random.randint(1, MAX_CHANGES)):
        _change_one(random, changed)
    return changed[0]


def as_json(document: Any) -> bytes:
    """Also for what no JSON document holds: NaN, bytes, lone surrogates, lists that are nested very deeply."""
    try:
        return json.dumps(document, default=repr).encode()
    except RecursionError:
        return b"[" * 100_000


def as_messages(document: Any) -> bytes:
    """In MessagePack; in JSON, which no replica sends, for what it does not hold."""
    try:
        return msgspec.msgpack.encode(document)
    except (OverflowError, RecursionError, TypeError, UnicodeEncodeError):
        return as_json(document)


def _change_one(random: Random, changed: list[Any]) -> None:
    places = list(_places(changed))
    holder, key = random.choice(places)
    match random.randrange(5):
        case 0:
            del holder[key]
            if holder is changed:
                changed.append({})
        case 1:
            other, other_key = random.choice(places)
            holder[key] = _copy(other[other_key])
        case 2 if isinstance(holder, dict):
            holder[random.choice(("", "extra", "__class__", f"{key} "))] = _value(random)
        case _:
            holder[key] = _value(random)


def _copy(value: Any) -> Any:
    try:
        return deepcopy(value)
    except RecursionError:
        return nested(3)


def _value(random: Random) -> Any:
    return random.choice(_VALUES)(random)


def _places(holder: list[Any] | dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Every list and object with each of its keys, but nothing that is nested more deeply than a message is."""
    stack: list[tuple[Any, int]] = [(holder, 0)]
    while stack:
        current, depth = stack.pop()
        keys = list(current) if isinstance(current, dict) else range(min(len(current), 50))
        for key in keys:
            yield current, key
            if isinstance(current[key], list | dict) and depth < 20:
                stack.append((current[key], depth + 1))


def _span(random: Random, data: bytearray) -> slice:
    start = random.randint(0, len(data))
    return slice(start, min(len(data), start + random.choice((1, 2, 4, 16, 64))))


def _flip(random: Random, data: bytearray) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _overwrite(random: Random, data: bytearray) -> None:
    span = _span(random, data)
    data[span] = random.randbytes(span.stop - span.start)


def _remove(random: Random, data: bytearray) -> None:
    del data[_span(random, data)]


def _repeat(random: Random, data: bytearray) -> None:
    span = _span(random, data)
    data[span.start : span.start] = bytes(data[span]) * random.choice((1, 2, 50))


def _insert(random: Random, data: bytearray) -> None:
    at = random.randint(0, len(data))
    data[at:at] = random.choice(_INTERESTING)


def _cut(random: Random, data: bytearray) -> None:
    del data[random.randint(0, len(data)) :]


_CHANGES: tuple[_Change, ...] = (_flip, _flip, _overwrite, _remove, _repeat, _insert, _insert, _cut)
