"""Lines that are facts by themselves: acts of administrators, and changes of the leader."""

from __future__ import annotations

from collections.abc import Iterator

from rota.core.group.records import CLASSES, quantile_ms
from rota.pipeline.facts.fact import Event, Fact, Row, State, apart_ms, row, us
from rota.pipeline.facts.view import GroupView
from rota.pipeline.tables import ADMINISTERED, FAILOVERS, HEARTBEATS, LEADER_CHANGED, TOPICS
from rota.server.observability.generations import rebalance_cause


class LeaderChanges(Fact):
    """One row a line; nothing is carried."""

    table = LEADER_CHANGED

    def __init__(self, state: State | None = None) -> None:
        self.state: State = state or {}

    def add(self, event: Event, view: GroupView) -> Iterator[Row]:
        yield row(
            LEADER_CHANGED,
            **view.key,
            generation_id=event.generation_id,
            at=us(event.at_ms),
            former_leader_id=event.payload["former_leader_id"],
            leader_id=event.payload["leader_id"],
            cause=rebalance_cause(event.payload),
            reason=event.reason,
        )


class Acts(Fact):
    """One row a line; nothing is carried."""

    table = ADMINISTERED

    def __init__(self, state: State | None = None) -> None:
        self.state: State = state or {}

    def add(self, event: Event, _view: GroupView) -> Iterator[Row]:
        yield row(
            ADMINISTERED,
            shard_id=event.shard_id,
            seq=event.seq,
            at=us(event.at_ms),
            namespace=event.namespace,
            group_id=event.group_id,
            generation_id=event.generation_id,
            operation=event.payload["operation"],
            actor=event.payload["actor"],
            target=event.payload["target"],
            note=event.reason,
            origin=event.payload["origin"],
        )


# --- shards and topics ----------------------------------------------------------------------------------------


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


# --- statistics of heartbeats ---------------------------------------------------------------------------------


class Heartbeats(Fact):
    """A row for each member of each line of statistics."""

    table = HEARTBEATS

    def __init__(self, state: State | None = None) -> None:
        self.state: State = state or {}

    def add(self, event: Event, view: GroupView) -> Iterator[Row]:
        for member_id, client_id, session_ms, from_ms, max_gap_ms, counted in event.payload["members"]:
            classes = dict(counted)
            yield row(
                HEARTBEATS,
                **view.key,
                member_id=member_id,
                client_id=client_id,
                session_timeout_ms=session_ms,
                from_at=us(from_ms),
                to_at=us(event.at_ms),
                heartbeats=sum(classes.values()),
                gaps=[classes.get(number, 0) for number in range(CLASSES)],
                max_gap_ms=max_gap_ms,
                p50_ms=quantile_ms(classes, 0.5),
                p99_ms=quantile_ms(classes, 0.99),
                p999_ms=quantile_ms(classes, 0.999),
            )
