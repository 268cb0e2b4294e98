"""Every rebalance: why it began, how long it took, who came and went, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rota.pipeline.facts.causes import COORDINATOR_CHANGED, REASSIGNED, cause_of
from rota.pipeline.facts.fact import GONE, Event, Fact, Row, State, apart_ms, row, us
from rota.pipeline.facts.view import PREPARING, GroupView
from rota.pipeline.tables import REBALANCES

_COUNTED = {
    "member_joined": "joined",
    "member_left": "left",
    "member_expired": "expired",
    "member_removed": "removed",
    "member_fenced": "replaced",
}


class Rebalances(Fact):
    """At most one rebalance is open. It is closed by its assignment, or by whatever makes that impossible."""

    kinds = frozenset(
        {
            "rebalance_started",
            "generation_completed",
            "assignment_synced",
            "assignment_failed",
            "group_emptied",
            "group_deleted",
            *GONE,
            *_COUNTED,
        }
    )

    def __init__(self, state: State | None = None) -> None:
        self.state: State = state or {"open": None, "counts": dict.fromkeys(_COUNTED.values(), 0)}

    def add(self, event: Event, view: GroupView) -> Iterator[Row]:
        match event.kind:
            case "rebalance_started":
                yield from self._close(event.at_ms, view, "superseded")
                self.state["open"] = _began(event, view, cause_of(event, view), event.payload["by"])
            case "generation_completed":
                self._complete(event, view)
            case "assignment_synced" if event.payload["resync"]:
                yield from self._reassigned(event, view)
            case "assignment_synced":
                if (opened := self.state["open"]) is not None:
                    opened["sync_ms"] = apart_ms(opened["completed_ms"] or event.at_ms, event.at_ms)
                yield from self._close(event.at_ms, view, "assigned")
            case "assignment_failed":
                yield from self._close(event.at_ms, view, "assignment_failed")
            case "group_emptied":
                if (opened := self.state["open"]) is not None and opened["completed_ms"] is not None:
                    yield from self._close(event.at_ms, view, "superseded")
                opened = self.state["open"] or _began(event, view, cause_of(event, view), "")
                opened.update(generation_id=event.payload["generation_id"], members_after=0, **self._take_counts())
                self.state["open"] = opened
                yield from self._close(event.at_ms, view, "emptied")
            case "group_deleted":
                yield from self._close(event.at_ms, view, "deleted")
            case kind:
                self.state["counts"][_COUNTED[kind]] += 1

    def taken_over(self, event: Event, view: GroupView) -> Iterator[Row]:
        self.state["counts"]["joined"] -= [each["settled"] for each in view.members.values()].count(False)
        opened = self.state["open"]
        if opened is not None and opened["completed_ms"] is None and view.settled != PREPARING:
            yield from self._close(event.at_ms, view, "forgotten")

    def open_rows(self, view: GroupView) -> Iterator[Row]:
        if self.state["open"] is not None:
            yield _row(self.state["open"], view, None, "")

    def _complete(self, event: Event, view: GroupView) -> None:
        payload = event.payload
        opened = self.state["open"]
        if opened is None:
            # A new owner loads a group in its join phase, and nobody has to say again that it began.
            opened = _began(event, view, COORDINATOR_CHANGED, payload["by"])
            opened["started_ms"] = payload["started_at_ms"]
        opened.update(
            generation_id=payload["generation_id"],
            completed_ms=event.at_ms,
            members_after=len(payload["member_ids"]),
            leader_id=payload["leader_id"],
            protocol_type=payload["protocol_type"],
            protocol_name=payload["protocol_name"],
            **self._take_counts(),
        )
        self.state["open"] = opened

    def _reassigned(self, event: Event, view: GroupView) -> Iterator[Row]:
        opened = _began(event, view, REASSIGNED, event.payload["leader_id"])
        opened.update(
            generation_id=event.payload["generation_id"],
            sync_ms=0,
            members_after=view.size,
            leader_id=event.payload["leader_id"],
            protocol_type=view.state["protocol_type"],
            protocol_name=view.state["protocol_name"],
        )
        yield _row(opened, view, event.at_ms, "reassigned")

    def _close(self, at_ms: int, view: GroupView, outcome: str) -> Iterator[Row]:
        opened, self.state["open"] = self.state["open"], None
        if opened is not None:
            yield _row(opened, view, at_ms, outcome)

    def _take_counts(self) -> dict[str, int]:
        counts: dict[str, int] = self.state["counts"]
        self.state["counts"] = dict.fromkeys(counts, 0)
        return counts


def _began(event: Event, view: GroupView, cause: str, by: str) -> dict[str, Any]:
    return {
        "cause": cause,
        "reason": event.reason,
        "by": by,
        "from_state": view.now,
        "started_ms": event.at_ms,
        "members_before": view.size,
        "generation_id": None,
        "completed_ms": None,
        "sync_ms": None,
        "members_after": None,
        "leader_id": "",
        "protocol_type": "",
        "protocol_name": "",
        **dict.fromkeys(_COUNTED.values(), 0),
    }


def _row(opened: dict[str, Any], view: GroupView, ended_ms: int | None, outcome: str) -> Row:
    started_ms, completed_ms = opened["started_ms"], opened["completed_ms"]
    return row(
        REBALANCES,
        **view.key,
        **{name: value for name, value in opened.items() if name not in ("started_ms", "completed_ms")},
        started_at=us(started_ms),
        completed_at=us(completed_ms),
        ended_at=us(ended_ms),
        join_ms=None if completed_ms is None else apart_ms(started_ms, completed_ms),
        duration_ms=None if ended_ms is None else apart_ms(started_ms, ended_ms),
        outcome=outcome,
    )
