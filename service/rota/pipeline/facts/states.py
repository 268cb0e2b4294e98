"""How long a group was in which state."""

from __future__ import annotations

from collections.abc import Iterator

from rota.pipeline.facts.fact import Event, Fact, Row, State, apart_ms, row, us
from rota.pipeline.facts.view import COMPLETING, DEAD, EMPTY, PREPARING, STABLE, GroupView
from rota.pipeline.tables import GROUP_STATES

_LEADS_TO = {
    "rebalance_started": PREPARING,
    "generation_completed": COMPLETING,
    "assignment_synced": STABLE,
    "group_emptied": EMPTY,
    "group_deleted": DEAD,
}


class GroupStates(Fact):
    """A stay ends when the next one begins; a resync of a Stable group is no move."""

    table = GROUP_STATES

    def __init__(self, state: State | None = None) -> None:
        self.state: State = state or {"name": None, "since_ms": 0, "generation_id": 0}

    def add(self, event: Event, view: GroupView) -> Iterator[Row]:
        # A group that was deleted and is used again is Empty from then on.
        to = _LEADS_TO.get(event.kind, EMPTY if self.state["name"] in (None, DEAD) else self.state["name"])
        yield from self._move(to, event, view)

    def taken_over(self, event: Event, view: GroupView) -> Iterator[Row]:
        if self.state["name"] is not None:
            yield from self._move(view.settled, event, view)

    def open_rows(self, view: GroupView) -> Iterator[Row]:
        if self.state["name"] is not None:
            yield self._row(view, None)

    def _move(self, to: str, event: Event, view: GroupView) -> Iterator[Row]:
        if to == self.state["name"]:
            return
        if self.state["name"] is not None:
            yield self._row(view, event.at_ms)
        # Where the journal's beginning was pruned, the line knows the generation before the view does.
        generation_id = event.payload.get("generation_id", view.generation_id or event.generation_id)
        self.state = {"name": to, "since_ms": event.at_ms, "generation_id": generation_id}

    def _row(self, view: GroupView, to_ms: int | None) -> Row:
        since_ms = self.state["since_ms"]
        return row(
            GROUP_STATES,
            **view.key,
            state=self.state["name"],
            generation_id=self.state["generation_id"],
            from_at=us(since_ms),
            to_at=us(to_ms),
            ms=None if to_ms is None else apart_ms(since_ms, to_ms),
        )
