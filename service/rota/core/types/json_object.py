"""A JSON object from untrusted bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from rota.core.assignors.model import TopicPartition
from rota.core.types.wire_format import MalformedMetadata


def decode_object(data: bytes) -> dict[str, Any]:
    """Raises `MalformedMetadata` for anything else, and for text that no store can hold: lone surrogates and NUL."""
    try:
        values = json.loads(data.decode())
        # Only an escape can bring such a character along.
        if b"\\u" in data:
            again = json.dumps(values, ensure_ascii=False).encode()
            if b"\\u0000" in again.replace(b"\\\\", b""):
                raise MalformedMetadata("a text has NUL")
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


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Sorted numbers by topic."""
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        numbers.setdefault(topic, []).append(partition)
    return numbers


def partitions_in(numbers: object) -> tuple[TopicPartition, ...]:
    """The reverse of `by_topic`; raises `MalformedMetadata` for anything else."""
    if not isinstance(numbers, dict):
        raise MalformedMetadata("partitions must be lists of numbers by topic")
    found: list[TopicPartition] = []
    for topic, of_topic in numbers.items():
        if not isinstance(of_topic, list) or not all(type(number) is int for number in of_topic):
            raise MalformedMetadata(f"the partitions of {topic!r} must be a list of numbers")
        found += [TopicPartition(topic, number) for number in of_topic]
    return tuple(found)


def positive_number(value: object) -> float | None:
    """A value as a finite number above 0; None if it is none. JSON has integers that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if 0 < number < float("inf") else None
