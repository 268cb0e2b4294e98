"""The owners of a shard, and the time without one: events of a shard itself, which name no group."""

from __future__ import annotations

from collections.abc import Iterator

from rota.pipeline.facts.fact import Event, Fact, Row, State, apart_ms, row, us
from rota.pipeline.facts.view import GroupView
from rota.pipeline.tables import FAILOVERS, TOPICS


class Failovers(Fact):
    """`seen_ms` is the last sign of the owner that this shard's own lines give."""

    table = FAILOVERS

    def __init__(self, state: State | None = None) -> None:
        self.state: State = state or {"replica_id": "", "seen_ms": None, "released": False}

    def add(self, event: Event, _view: GroupView) -> Iterator[Row]:
        if event.kind == "shard_released":
            self.state.update(released=True, seen_ms=event.at_ms)
            return
        seen_ms = self.state["seen_ms"]
        yield row(
            FAILOVERS,
            shard_id=event.shard_id,
            epoch=event.payload["epoch"],
            from_replica=self.state["replica_id"],
            to_replica=event.payload["replica_id"],
            at=us(event.at_ms),
            gap_ms=apart_ms(seen_ms, event.at_ms) if self.state["released"] else None,
            graceful=self.state["released"],
        )
        self.state = {"replica_id": event.payload["replica_id"], "seen_ms": event.at_ms, "released": False}


class Topics(Fact):
    """Changes of registered topics."""

    table = TOPICS

    def __init__(self, state: State | None = None) -> None:
        self.state: State = state or {}

    def add(self, event: Event, _view: GroupView) -> Iterator[Row]:
        topic, partitions = event.payload["topic"], event.payload["partitions"]
        yield row(TOPICS, namespace=event.namespace, topic=topic, at=us(event.at_ms), partitions=partitions)
