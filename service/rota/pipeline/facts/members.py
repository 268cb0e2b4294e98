"""The members of a group with their times and endings, and the members that come and go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median_low
from typing import Any

from rota.pipeline.facts.fact import Event, Fact, Row, State, apart_ms, row, us
from rota.pipeline.facts.offsets import HOUR_MS
from rota.pipeline.facts.view import GroupView
from rota.pipeline.tables import MEMBERS
from rota.protocol.causes import MEMBER_ENDS

_STILL_HERE = {"sessions_in_hour": None, "median_session_ms": None, "flapping": None}
_SAID = ("group_instance_id", "client_id", "host", "session_timeout_ms", "rebalance_timeout_ms")


class Members(Fact):
    """One open row a member. A static member that comes back is a member anew: its old id is void.

    Carries the present members, and those that have gone within the last hour: by client, in the order of the last end.
    """

    table = MEMBERS

    def __init__(self, state: State | None = None) -> None:
        self.state: State = state or {"here": {}, "gone": {}}

    def add(self, event: Event, view: GroupView) -> Iterator[Row]:
        payload, here = event.payload, self.state["here"]
        match event.kind:
            case "member_joined":
                member = payload["member"]
                said = {name: member[name] for name in _SAID}
                here[member["member_id"]] = {**said, "joined_ms": event.at_ms, "first": None, "settled": False}
            case "member_updated":
                member = payload["member"]
                known = here.setdefault(member["member_id"], {"joined_ms": event.at_ms, "first": None, "settled": True})
                known.update({name: member[name] for name in _SAID})
            case "member_fenced":
                yield from self._replace(event, view)
            case "generation_completed":
                # Where the journal's beginning was pruned, there are members without a join.
                for member in filter(None, map(here.get, payload["member_ids"])):
                    member["settled"] = True
                    member["first"] = member["first"] or payload["generation_id"]
            case kind:
                member = here.pop(payload["member_id"], None)
                if member is not None:
                    yield self._gone(payload["member_id"], member, view, event.at_ms, MEMBER_ENDS[kind], event.reason)

    def taken_over(self, event: Event, view: GroupView) -> Iterator[Row]:
        here = self.state["here"]
        for member_id, member in list(here.items()):
            if not member["settled"]:
                del here[member_id]
                reason = "its join phase was forgotten"
                yield self._gone(member_id, member, view, event.at_ms, "forgotten", reason)

    def open_rows(self, view: GroupView) -> Iterator[Row]:
        for member_id, member in self.state["here"].items():
            yield _row(member_id, member, view, None, "", "", _STILL_HERE)

    def _replace(self, event: Event, view: GroupView) -> Iterator[Row]:
        old_id, new_id = event.payload["member_id"], event.payload["new_member_id"]
        here = self.state["here"]
        member = here.get(old_id)
        if member is None:
            return
        yield self._gone(old_id, member, view, event.at_ms, MEMBER_ENDS[event.kind], event.reason)
        first = view.generation_id if member["first"] else None
        anew = {**member, "joined_ms": event.at_ms, "first": first}
        self.state["here"] = {(new_id if m == old_id else m): (anew if m == old_id else x) for m, x in here.items()}

    def _gone(
        self, member_id: str, member: dict[str, Any], view: GroupView, ended_ms: int, end: str, end_reason: str
    ) -> Row:
        flapping = self._flapping(member, ended_ms)
        return _row(member_id, member, view, ended_ms, end, end_reason, flapping)

    def _flapping(self, member: dict[str, Any], ended_ms: int) -> dict[str, int]:
        """By the client's sessions that ended within an hour. A deployment ends long ones, a crash loop short ones.

        The hour is up to the group's latest end, for owners' clocks differ.
        """
        gone, joined_ms = self.state["gone"], member["joined_ms"]
        client = member["group_instance_id"] or member["client_id"]
        now_ms = max(ended_ms, next(reversed(gone.values()))[-1][0]) if gone else ended_ms
        since_ms = now_ms - HOUR_MS
        recent = [each for each in gone.pop(client, []) if each[0] > since_ms]
        gone[client] = recent = [*recent, [now_ms, joined_ms, apart_ms(joined_ms, ended_ms)]]
        while gone[longest_gone := next(iter(gone))][-1][0] <= since_ms:
            del gone[longest_gone]
        return {
            "sessions_in_hour": len(recent),
            "median_session_ms": median_low(ms for _, _, ms in recent),
            "flapping": sum(joined_ms > since_ms for _, joined_ms, _ in recent),
        }


def _row(
    member_id: str,
    member: dict[str, Any],
    view: GroupView,
    ended_ms: int | None,
    end: str,
    end_reason: str,
    flapping: Mapping[str, int | None],
) -> Row:
    joined_ms = member["joined_ms"]
    return row(
        MEMBERS,
        **view.key,
        member_id=member_id,
        **{name: member[name] for name in _SAID},
        joined_at=us(joined_ms),
        ended_at=us(ended_ms),
        ms=None if ended_ms is None else apart_ms(joined_ms, ended_ms),
        first_generation_id=member["first"],
        last_generation_id=view.generation_id if member["first"] else None,
        end=end,
        end_reason=end_reason,
        **flapping,
    )
