"""The leaders of a group with their terms, and the time without a leader."""

from __future__ import annotations

from collections.abc import Iterator

from rota.pipeline.facts.fact import Event, Fact, Row, State, apart_ms, row, us
from rota.pipeline.facts.view import GroupView
from rota.pipeline.tables import LEADER_TENURES
from rota.protocol.causes import MEMBER_ENDS


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
