"""How the values that are made for each call are declared: messages, records, answers and journal lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

Value = TypeVar("Value")


@dataclass_transform(frozen_default=True)
def frozen(kind: type[Value]) -> type[Value]:
    """A dataclass with slots and a hash. The type checker rejects what changes one; at run time nothing does.

    `dataclass(frozen=True)` checks that at run time too, so that to make an object takes four times as long: 0.9 µs
    with nine fields instead of 0.2. A commit makes seven of them (ADR 93).
    """
    return dataclass(slots=True, unsafe_hash=True)(kind)
