"""Lines that are facts by themselves: acts of administrators, and changes of the leader."""

from __future__ import annotations

from collections.abc import Iterator

from rota.observability.causes import rebalance_cause
from rota.pipeline.facts.fact import Event, Fact, Row, State, row, us
from rota.pipeline.facts.view import GroupView
from rota.pipeline.tables import ADMINISTERED, LEADER_CHANGED


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
