"""How fast each partition went, hour by hour, and where it stood still."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rota.pipeline.facts.fact import Event, Fact, Row, State, apart_ms, row, us
from rota.pipeline.facts.view import GroupView
from rota.pipeline.tables import OFFSETS

HOUR_MS = 3_600_000


class Offsets(Fact):
    """One open hour a partition, closed by the first commit of another hour."""

    table = OFFSETS

    def __init__(self, state: State | None = None) -> None:
        self.state: State = state or {}

    def add(self, event: Event, view: GroupView) -> Iterator[Row]:
        match event.kind:
            case "offsets_committed":
                for topic, partition, offset, *_ in event.payload["offsets"]:
                    if (closed := self._commit(topic, partition, int(offset), event.at_ms)) is not None:
                        yield _row(topic, partition, closed, view)
            case "offsets_deleted":
                for topic, partition in event.payload["partitions"]:
                    yield from self._forget(topic, partition, view)
            case _:
                yield from self.open_rows(view)
                self.state.clear()

    def open_rows(self, view: GroupView) -> Iterator[Row]:
        for topic, partitions in self.state.items():
            for partition, hour in partitions.items():
                yield _row(topic, int(partition), hour, view)

    def _commit(self, topic: str, partition: int, offset: int, at_ms: int) -> dict[str, Any] | None:
        """Count a commit; returns the hour that is over by it."""
        # JSON's keys are text, so they are text from the beginning.
        partitions, key = self.state.setdefault(topic, {}), str(partition)
        hour = partitions.get(key)
        hour_ms = at_ms - at_ms % HOUR_MS
        if hour is not None and hour["hour_ms"] == hour_ms:
            closed, since_ms, former = None, hour["last_ms"], hour["last"]
        else:
            closed, hour = hour, {"hour_ms": hour_ms, "first": offset, "first_ms": at_ms, "n": 0, "stall": 0, "back": 0}
            since_ms, former = (at_ms, offset) if closed is None else (closed["last_ms"], closed["last"])
            partitions[key] = hour
        hour["n"] += 1
        if offset < former:
            hour["back"] += 1
        hour["stall"] = max(hour["stall"], at_ms - since_ms)
        hour["last"], hour["last_ms"] = offset, at_ms
        return closed

    def _forget(self, topic: str, partition: int, view: GroupView) -> Iterator[Row]:
        hour = self.state.get(topic, {}).pop(str(partition), None)
        if hour is not None:
            yield _row(topic, partition, hour, view)


def _row(topic: str, partition: int, hour: dict[str, Any], view: GroupView) -> Row:
    took_ms = apart_ms(hour["first_ms"], hour["last_ms"])
    return row(
        OFFSETS,
        **view.key,
        topic=topic,
        partition=partition,
        hour=us(hour["hour_ms"]),
        first_offset=hour["first"],
        last_offset=hour["last"],
        commits=hour["n"],
        first_at=us(hour["first_ms"]),
        last_at=us(hour["last_ms"]),
        rate_per_s=float(hour["last"] - hour["first"]) * 1000 / took_ms if took_ms else None,
        stall_ms=hour["stall"],
        went_back=hour["back"],
    )
