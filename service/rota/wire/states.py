"""The names of group states in a filter: in any case, with blanks around them, and several in one text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rota.protocol.limits import Limits
from rota.wire.fields import Schema, Text, invalid
from rota.wire.records import ListOf
from rota.wire.suggestions import unknown

STATE_NAMES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
_BLANKS = " \t"
_BY_FOLDED = {name.casefold(): name for name in STATE_NAMES}


@dataclass(frozen=True, slots=True)
class StateFilter(ListOf):
    """A list of texts, each with one state or several between commas. `Stable, empty` are two."""

    def decode(self, value: Any, limits: Limits) -> tuple[str, ...]:
        texts: tuple[str, ...] = ListOf.decode(self, value, limits)
        return tuple(dict.fromkeys(name for text in texts for name in _names_in(text)))

    def schema(self, limits: Limits) -> Schema:
        return {**ListOf.schema(self, limits), "items": {"type": "string", "maxLength": 249, "pattern": _PATTERN}}


def states(max_items: int) -> StateFilter:
    return StateFilter(Text(249), max_items)


def _names_in(text: str) -> Iterator[str]:
    for part in text.split(","):
        name = part.strip(_BLANKS)
        if name and name.casefold() not in _BY_FOLDED:
            raise invalid(unknown("state", name, STATE_NAMES))
        if name:
            yield _BY_FOLDED[name.casefold()]


def _any_case(name: str) -> str:
    return "".join(f"[{letter.upper()}{letter.lower()}]" for letter in name)


_ONE = f"[{_BLANKS}]*(?:{'|'.join(map(_any_case, STATE_NAMES))})?[{_BLANKS}]*"
_PATTERN = f"^{_ONE}(?:,{_ONE})*$"
