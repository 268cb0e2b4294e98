"""A JSON object from untrusted bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rota.types.wire_format import MalformedMetadata


def decode_object(data: bytes) -> dict[str, Any]:
    """Raises `MalformedMetadata` for anything else."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedMetadata(f"not JSON: {error}") from error
    if not isinstance(values, dict):
        raise MalformedMetadata("not a JSON object")
    return values


def names_in(values: Mapping[str, Any], key: str, default: object = ()) -> tuple[str, ...]:
    """The list of names under this key; raises `MalformedMetadata` for anything else."""
    names = values.get(key, default)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise MalformedMetadata(f'"{key}" must be a list of names')
    return tuple(names)


def positive_number(value: object) -> float | None:
    """A value as a finite number above 0; None if it is none. JSON has integers that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if 0 < number < float("inf") else None
