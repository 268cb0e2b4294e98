"""How long a group was in which state."""

from __future__ import annotations

from collections.abc import Iterator

from rota.pipeline.facts.fact import Event, Fact, Row, State, apart_ms, row, us
from rota.pipeline.facts.view import COMPLETING, DEAD, EMPTY, PREPARING, STABLE, GroupView
from rota.pipeline.tables import GROUP_STATES, LEADER_TENURES
from rota.protocol.causes import MEMBER_ENDS

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


# --- leaders --------------------------------------------------------------------------------------------------


class LeaderTenures(Fact):
    """A tenure begins with a completed generation, and ends when the leader goes or another follows it."""

    table = LEADER_TENURES

    def __init__(self, state: State | None = None) -> None:
        self.state: State = state or {"leader_id": "", "from_ms": 0, "generations": 0, "gap_ms": None, "free_ms": None}

    def add(self, event: Event, view: GroupView) -> Iterator[Row]:
        payload, leader_id = event.payload, self.state["leader_id"]
        match event.kind:
            case "generation_completed" if payload["leader_id"] == leader_id:
                self.state["generations"] += 1
            case "generation_completed":
                yield from self._close(event, view, "succeeded")
                self._begin(payload["leader_id"], event.at_ms, 1)
            case "member_fenced" if payload["member_id"] == leader_id:
                yield from self._close(event, view, MEMBER_ENDS[event.kind])
                self._begin(payload["new_member_id"], event.at_ms, 0)
            case "group_emptied" | "group_deleted":
                yield from self._close(event, view, "emptied")
            case kind if kind in MEMBER_ENDS and payload["member_id"] == leader_id:
                yield from self._close(event, view, MEMBER_ENDS[kind])

    def open_rows(self, view: GroupView) -> Iterator[Row]:
        if self.state["leader_id"]:
            yield self._row(view, None, "")

    def _begin(self, leader_id: str, at_ms: int, generations: int) -> None:
        free_ms = self.state["free_ms"]
        gap_ms = None if free_ms is None else apart_ms(free_ms, at_ms)
        self.state = {
            "leader_id": leader_id,
            "from_ms": at_ms,
            "generations": generations,
            "gap_ms": gap_ms,
            "free_ms": None,
        }

    def _close(self, event: Event, view: GroupView, ended_by: str) -> Iterator[Row]:
        if self.state["leader_id"]:
            yield self._row(view, event.at_ms, ended_by)
            self.state = {**self.state, "leader_id": "", "free_ms": event.at_ms}

    def _row(self, view: GroupView, to_ms: int | None, ended_by: str) -> Row:
        from_ms = self.state["from_ms"]
        return row(
            LEADER_TENURES,
            **view.key,
            leader_id=self.state["leader_id"],
            from_at=us(from_ms),
            to_at=us(to_ms),
            ms=None if to_ms is None else apart_ms(from_ms, to_ms),
            generations=self.state["generations"],
            gap_ms=self.state["gap_ms"],
            ended_by=ended_by,
        )
