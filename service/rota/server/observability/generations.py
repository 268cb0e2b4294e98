"""The journal of a group by generations: cause and duration of each, members that joined and left, assignments."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rota.protocol.causes import MEMBER_ENDS, Cause

Event = Mapping[str, Any]
"""A line of the journal in JSON: `at_ms`, `generation_id`, `kind`, `reason`, `payload`, `revision`."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A departed member, how it left (`left`, `expired`, `removed`, `replaced`), and why."""

    member_id: str
    how: str
    reason: str


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation, from its rebalance on. Values that the journal does not have (yet) are None."""

    generation_id: int
    reason: str = ""
    by: str = ""
    cause: str = ""
    """A code of `rota.protocol.causes`."""
    started_at_ms: int | None = None
    completed_at_ms: int | None = None
    """When the join phase ended."""
    assigned_at_ms: int | None = None
    failure: str = ""
    """Why the leader could not assign."""
    leader_id: str = ""
    protocol_name: str = ""
    member_ids: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    """Members that were not in the previous generation."""
    departed: tuple[Departure, ...] = ()
    assignments: Mapping[str, bytes] = field(default_factory=dict)
    revision: int = 0

    @property
    def took_ms(self) -> int | None:
        """The time from the rebalance's start to its last known event."""
        end_ms = self.assigned_at_ms or self.completed_at_ms
        return None if self.started_at_ms is None or end_ms is None else end_ms - self.started_at_ms


def generations(events: Iterable[Event]) -> list[Generation]:
    """Return the generations in these lines of one group's journal, the oldest first.

    A rebalance in progress is the last of them, without `completed_at_ms`. A group that became empty counts as a
    generation without members.
    """
    reader = _Reader()
    for event in events:
        reader.read(event)
    return reader.story()


class _Reader:
    def __init__(self) -> None:
        self._finished: list[Generation] = []
        self._members: tuple[str, ...] | None = None
        """The members of the last generation; None if the events start later."""
        self._running: Generation | None = None
        self._departed: list[Departure] = []

    def story(self) -> list[Generation]:
        if self._running is None:
            return self._finished
        return [*self._finished, replace(self._running, departed=tuple(self._departed))]

    def read(self, event: Event) -> None:
        kind, payload = event["kind"], event["payload"]
        if kind in MEMBER_ENDS:
            self._departed.append(Departure(payload["member_id"], MEMBER_ENDS[kind], event["reason"]))
        elif kind == "rebalance_started":
            self._running = Generation(
                event["generation_id"] + 1,
                event["reason"],
                payload["by"],
                rebalance_cause(payload),
                event["at_ms"],
                revision=event["revision"],
            )
        elif kind == "generation_completed":
            self._complete(event, payload)
        elif kind == "group_emptied":
            self._empty(event, payload)
        elif kind in ("assignment_synced", "assignment_failed"):
            self._assign(event, payload)

    def _complete(self, event: Event, payload: Mapping[str, Any]) -> None:
        members = tuple(payload["member_ids"])
        before = self._members
        self._finish(
            Generation(
                payload["generation_id"],
                event["reason"],
                payload["by"],
                rebalance_cause(payload),
                payload["started_at_ms"],
                event["at_ms"],
                leader_id=payload["leader_id"],
                protocol_name=payload["protocol_name"],
                member_ids=members,
                joined=() if before is None else tuple(one for one in members if one not in set(before)),
                revision=event["revision"],
            )
        )

    def _empty(self, event: Event, payload: Mapping[str, Any]) -> None:
        at_ms = event["at_ms"]
        cause = rebalance_cause(payload)
        place = payload["generation_id"], event["reason"], payload.get("by", "")
        emptied = Generation(*place, cause, at_ms, at_ms, at_ms, revision=event["revision"])
        self._finish(emptied)

    def _finish(self, generation: Generation) -> None:
        self._finished.append(replace(generation, departed=tuple(self._departed)))
        self._members, self._running = generation.member_ids, None
        self._departed.clear()

    def _assign(self, event: Event, payload: Mapping[str, Any]) -> None:
        if not self._finished:
            return
        last = self._finished[-1]
        if event["kind"] == "assignment_failed":
            self._finished[-1] = replace(last, failure=event["reason"] or "no reason given")
            return
        shares = {member_id: b64decode(share) for member_id, share in payload["assignments"]}
        if not payload["resync"]:
            self._finished[-1] = replace(last, assigned_at_ms=event["at_ms"], assignments=shares)
            return
        at_ms, reason = event["at_ms"], event["reason"] or "the leader changed the assignment"
        same_members = replace(last, joined=(), departed=(), failure="", assignments=shares, revision=event["revision"])
        began = replace(same_members, started_at_ms=at_ms, completed_at_ms=at_ms, assigned_at_ms=at_ms)
        again = replace(began, generation_id=payload["generation_id"], reason=reason, by=payload.get("by", ""))
        self._finished.append(replace(again, cause=rebalance_cause(payload)))


def rebalance_cause(payload: Mapping[str, Any]) -> str:
    """Return the cause's code in a line about a rebalance or an empty group; a later release may send other codes."""
    code: str = payload.get("cause") or Cause.OTHER.value
    return code
