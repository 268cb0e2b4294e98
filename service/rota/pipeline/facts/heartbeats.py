"""How regularly heartbeats came, from the journal's own statistics: it has no line a heartbeat."""

from __future__ import annotations

from collections.abc import Iterator

from rota.group.records import CLASSES, quantile_ms
from rota.pipeline.facts.fact import Event, Fact, Row, State, row, us
from rota.pipeline.facts.view import GroupView
from rota.pipeline.tables import HEARTBEATS


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
