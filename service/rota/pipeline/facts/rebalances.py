"""Every rebalance: cause, duration, joined and departed members, and outcome."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rota.pipeline.facts.fact import Event, Fact, Row, State, apart_ms, row, us
from rota.pipeline.facts.view import COMPLETING, PREPARING, GroupView
from rota.pipeline.tables import REBALANCES
from rota.protocol.causes import Cause
from rota.server.observability.generations import rebalance_cause

ASSIGNED = "assigned"
REASSIGNED = "reassigned"
SUPERSEDED = "superseded"
TIMED_OUT = "timed_out"
ASSIGNMENT_FAILED = "assignment_failed"
EMPTIED = "emptied"
FORGOTTEN = "forgotten"
DELETED = "deleted"

OUTCOMES = {
    ASSIGNED: "all members could fetch a share",
    REASSIGNED: "the leader changed the assignment; no join phase was needed",
    SUPERSEDED: "another one began before there was an assignment, or the last member went",
    TIMED_OUT: "there was no assignment within the rebalance timeout: members that had not synced expired",
    ASSIGNMENT_FAILED: "the leader could not assign",
    EMPTIED: "the group became empty",
    FORGOTTEN: "the shard went to another owner in the join phase: members join again",
    DELETED: "the group was deleted; the lines before that are not there",
}
WASTED = (SUPERSEDED, TIMED_OUT, ASSIGNMENT_FAILED, FORGOTTEN)
"""Outcomes of rebalances that members have to repeat."""

_COUNTED = {
    "member_joined": "joined",
    "member_left": "left",
    "member_expired": "expired",
    "member_removed": "removed",
    "member_fenced": "replaced",
}


class Rebalances(Fact):
    """At most one rebalance is open. It ends with its assignment, or with whatever makes that impossible.

    One that ended because another began is returned when that one's join phase is over: until then it may yet go on.
    """

    table = REBALANCES

    def __init__(self, state: State | None = None) -> None:
        self.state: State = state or {
            "open": None,
            "ended": None,
            "counts": dict.fromkeys(_COUNTED.values(), 0),
        }

    def add(self, event: Event, view: GroupView) -> Iterator[Row]:
        match event.kind:
            case "rebalance_started":
                yield from self._closed(view)
                opened = _began(event, view, event.payload["by"])
                self._end(event.at_ms, _interrupted_by(opened["cause"]))
                self.state["open"] = opened
            case "generation_completed":
                yield from self._closed(view)
                self._complete(event, view)
            case "assignment_synced" if event.payload["resync"]:
                yield self._reassigned(event, view)
            case "assignment_synced":
                if (opened := self.state["open"]) is not None:
                    opened["sync_ms"] = apart_ms(opened["completed_ms"] or event.at_ms, event.at_ms)
                yield from self._close(event.at_ms, view, ASSIGNED)
            case "assignment_failed":
                yield from self._close(event.at_ms, view, ASSIGNMENT_FAILED)
            case "group_emptied":
                yield from self._emptied(event, view)
            case "group_deleted":
                yield from self._close(event.at_ms, view, DELETED)
            case kind:
                self.state["counts"][_COUNTED[kind]] += 1

    def taken_over(self, event: Event, view: GroupView) -> Iterator[Row]:
        self.state["counts"]["joined"] -= [each["settled"] for each in view.members.values()].count(False)
        opened = self.state["open"]
        if opened is None or opened["completed_ms"] is not None or view.settled == PREPARING:
            return
        goes_on = None
        if view.settled == COMPLETING:
            # The new owner waits for the assignment of the generation before.
            goes_on, self.state["ended"] = self.state["ended"], None
        yield from self._close(event.at_ms, view, FORGOTTEN)
        if goes_on is not None:
            self.state["open"] = {**goes_on, "ended_ms": None, "outcome": ""}

    def open_rows(self, view: GroupView) -> Iterator[Row]:
        for found in (self.state["ended"], self.state["open"]):
            if found is not None:
                yield _row(found, view)

    def _complete(self, event: Event, view: GroupView) -> None:
        payload = event.payload
        opened = self.state["open"]
        if opened is None:
            # The line that says so is not there.
            opened = _began(event, view, payload["by"])
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

    def _reassigned(self, event: Event, view: GroupView) -> Row:
        opened = _began(event, view, event.payload.get("by", ""))
        opened.update(
            cause=Cause.RESYNC.value,
            generation_id=event.payload["generation_id"],
            sync_ms=0,
            members_after=view.size,
            leader_id=event.payload["leader_id"],
            protocol_type=view.state["protocol_type"],
            protocol_name=view.state["protocol_name"],
            ended_ms=event.at_ms,
            outcome=REASSIGNED,
        )
        return _row(opened, view)

    def _emptied(self, event: Event, view: GroupView) -> Iterator[Row]:
        anew = _began(event, view, event.payload.get("by", ""))
        if (opened := self.state["open"]) is not None and opened["completed_ms"] is not None:
            yield from self._close(event.at_ms, view, _interrupted_by(anew["cause"]))
        opened = self.state["open"] = self.state["open"] or anew
        opened.update(generation_id=event.payload["generation_id"], members_after=0, **self._take_counts())
        yield from self._close(event.at_ms, view, EMPTIED)

    def _close(self, at_ms: int, view: GroupView, outcome: str) -> Iterator[Row]:
        """End the open row, and report it at once: it will not go on."""
        yield from self._closed(view)
        self._end(at_ms, outcome)
        yield from self._closed(view)

    def _end(self, at_ms: int, outcome: str) -> None:
        opened, self.state["open"] = self.state["open"], None
        if opened is not None:
            self.state["ended"] = {**opened, "ended_ms": at_ms, "outcome": outcome}

    def _closed(self, view: GroupView) -> Iterator[Row]:
        ended, self.state["ended"] = self.state["ended"], None
        if ended is not None:
            yield _row(ended, view)

    def _take_counts(self) -> dict[str, int]:
        counts: dict[str, int] = self.state["counts"]
        self.state["counts"] = dict.fromkeys(counts, 0)
        return counts


def _interrupted_by(cause: str) -> str:
    return TIMED_OUT if cause == Cause.SYNC_TIMEOUT else SUPERSEDED


def _began(event: Event, view: GroupView, by: str) -> dict[str, Any]:
    return {
        "cause": rebalance_cause(event.payload),
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
        "ended_ms": None,
        "outcome": "",
        **dict.fromkeys(_COUNTED.values(), 0),
    }


def _row(found: dict[str, Any], view: GroupView) -> Row:
    started_ms, completed_ms, ended_ms = found["started_ms"], found["completed_ms"], found["ended_ms"]
    return row(
        REBALANCES,
        **view.key,
        **{name: value for name, value in found.items() if name not in ("started_ms", "completed_ms", "ended_ms")},
        started_at=us(started_ms),
        completed_at=us(completed_ms),
        ended_at=us(ended_ms),
        join_ms=None if completed_ms is None else apart_ms(started_ms, completed_ms),
        duration_ms=None if ended_ms is None else apart_ms(started_ms, ended_ms),
    )
