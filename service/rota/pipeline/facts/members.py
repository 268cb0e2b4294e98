"""Who was in a group, from when to when, and how that ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rota.pipeline.facts.fact import ENDS, GONE, Event, Fact, Row, State, apart_ms, row, us
from rota.pipeline.facts.view import GroupView
from rota.pipeline.tables import MEMBERS

_SAID = ("group_instance_id", "client_id", "host", "session_timeout_ms", "rebalance_timeout_ms")


class Members(Fact):
    """One open row a member. A static member that comes back is a member anew: its old id is void."""

    kinds = frozenset({"member_joined", "member_updated", "member_fenced", "generation_completed", *GONE})

    def __init__(self, state: State | None = None) -> None:
        self.state: State = state or {}

    def add(self, event: Event, view: GroupView) -> Iterator[Row]:
        payload = event.payload
        match event.kind:
            case "member_joined":
                member = payload["member"]
                said = {name: member[name] for name in _SAID}
                self.state[member["member_id"]] = {**said, "joined_ms": event.at_ms, "first": None, "settled": False}
            case "member_updated":
                member = payload["member"]
                known = self.state.setdefault(
                    member["member_id"], {"joined_ms": event.at_ms, "first": None, "settled": True}
                )
                known.update({name: member[name] for name in _SAID})
            case "member_fenced":
                yield from self._replace(event, view)
            case "generation_completed":
                # Where the journal's beginning was pruned, members are there that nobody saw join.
                for member in filter(None, map(self.state.get, payload["member_ids"])):
                    member["settled"] = True
                    member["first"] = member["first"] or payload["generation_id"]
            case kind:
                member = self.state.pop(payload["member_id"], None)
                if member is not None:
                    yield _row(payload["member_id"], member, view, event.at_ms, ENDS[kind], event.reason)

    def taken_over(self, event: Event, view: GroupView) -> Iterator[Row]:
        for member_id, member in list(self.state.items()):
            if not member["settled"]:
                del self.state[member_id]
                yield _row(member_id, member, view, event.at_ms, "forgotten", "its join phase was forgotten")

    def open_rows(self, view: GroupView) -> Iterator[Row]:
        for member_id, member in self.state.items():
            yield _row(member_id, member, view, None, "", "")

    def _replace(self, event: Event, view: GroupView) -> Iterator[Row]:
        old_id, new_id = event.payload["member_id"], event.payload["new_member_id"]
        member = self.state.get(old_id)
        if member is None:
            return
        yield _row(old_id, member, view, event.at_ms, ENDS[event.kind], event.reason)
        first = view.generation_id if member["first"] else None
        anew = {**member, "joined_ms": event.at_ms, "first": first}
        self.state = {(new_id if m == old_id else m): (anew if m == old_id else each) for m, each in self.state.items()}


def _row(
    member_id: str, member: dict[str, Any], view: GroupView, ended_ms: int | None, end: str, end_reason: str
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
    )
