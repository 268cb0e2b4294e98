"""Members with fenced requests, and the delay after their replacement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rota.pipeline.facts.fact import Event, Fact, Row, State, apart_ms, row, us
from rota.pipeline.facts.offsets import HOUR_MS
from rota.pipeline.facts.view import GroupView
from rota.pipeline.tables import FENCED

_REMEMBERED_MS = 24 * HOUR_MS
"""So long after a member has gone its late requests are still put down to it."""


class FencedRequests(Fact):
    """One open row for each member, operation and error of an hour; all are closed by the first of another hour."""

    table = FENCED

    def __init__(self, state: State | None = None) -> None:
        self.state: State = state or {"hour_ms": 0, "rows": {}, "gone": {}}

    def add(self, event: Event, view: GroupView) -> Iterator[Row]:
        if event.kind != "request_fenced":
            self._note_departure(event.payload["member_id"], event.at_ms)
            return
        hour_ms = event.at_ms - event.at_ms % HOUR_MS
        if hour_ms != self.state["hour_ms"]:
            yield from self.open_rows(view)
            self.state["hour_ms"], self.state["rows"] = hour_ms, {}
        payload = event.payload
        key = "\n".join((payload["member_id"], payload["operation"], payload["error"]))
        found = self.state["rows"].setdefault(key, self._began(event))
        found["times"] += 1

    def open_rows(self, view: GroupView) -> Iterator[Row]:
        for key, found in self.state["rows"].items():
            member_id, operation, error = key.split("\n")
            yield row(
                FENCED,
                **view.key,
                member_id=member_id,
                group_instance_id=found["instance"],
                operation=operation,
                error=error,
                hour=us(self.state["hour_ms"]),
                first_at=us(found["first_ms"]),
                times=found["times"],
                after_ms=found["after_ms"],
            )

    def _began(self, event: Event) -> dict[str, Any]:
        gone_ms = self.state["gone"].get(event.payload["member_id"])
        return {
            "instance": event.payload["group_instance_id"],
            "first_ms": event.at_ms,
            "times": 0,
            "after_ms": None if gone_ms is None else apart_ms(gone_ms, event.at_ms),
        }

    def _note_departure(self, member_id: str, at_ms: int) -> None:
        gone = self.state["gone"]
        gone[member_id] = at_ms
        while gone and at_ms - next(iter(gone.values())) > _REMEMBERED_MS:
            del gone[next(iter(gone))]
