"""What all facts have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

from pydantic_core import from_json

from rota.pipeline.facts.view import GroupView
from rota.pipeline.tables import GOLD, Line, Table

State = dict[str, Any]


class Row(NamedTuple):
    """A row of a table, its values in the order of the table's columns."""

    table: str
    values: tuple[Any, ...]


class Event(NamedTuple):
    """A line with its payload read."""

    shard_id: int
    seq: int
    at_ms: int
    epoch: int
    namespace: str
    group_id: str
    generation_id: int
    kind: str
    reason: str
    payload: dict[str, Any]

    @classmethod
    def of(cls, line: Line) -> Event:
        """Read the payload; raises ValueError where it is no JSON object.

        pydantic-core's reader takes a third of the time of `json`, and there are millions.
        """
        payload = from_json(line.payload)
        if not isinstance(payload, dict):
            raise ValueError("the payload is no JSON object")
        return cls(*line[:-1], payload)


class Fact(ABC):
    """One question about a group."""

    table: ClassVar[Table]
    """What its rows are. It sees the table's sources."""
    state: State

    @abstractmethod
    def add(self, event: Event, view: GroupView) -> Iterator[Row]:
        """The rows that this line closes. `view` is the group as it was before the line."""

    def taken_over(self, _event: Event, _view: GroupView) -> Iterator[Row]:
        """The shard has a new owner since this group's line before: an unsettled phase never was.

        Nothing follows for facts that are settled as soon as they are there.
        """
        return iter(())

    def open_rows(self, _view: GroupView) -> Iterator[Row]:
        """What would be closed if nothing more ever came, as far as it is known by now; nothing for what has no end."""
        return iter(())


def row(table: Table, **values: Any) -> Row:
    """A row by the names of its columns; each must be there."""
    return Row(table.name, _IN_ORDER[table.name](values))


_IN_ORDER = {name: itemgetter(*[column.name for column in table.columns]) for name, table in GOLD.items()}


def us(at_ms: int | None) -> int | None:
    """Milliseconds as Arrow's timestamps want them."""
    return None if at_ms is None else at_ms * 1000


def apart_ms(from_ms: int, to_ms: int) -> int:
    """How long it took. Owners' clocks differ: after a failover the later line may have the earlier time."""
    return max(0, to_ms - from_ms)
