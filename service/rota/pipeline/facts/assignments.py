"""Every assignment: how even it is, and how much it moved against the least possible."""

from __future__ import annotations

from collections.abc import Iterator

from rota.pipeline.facts.fact import Event, Fact, Row, State, row, us
from rota.pipeline.facts.steps import Holders, Round, nothing
from rota.pipeline.facts.units import Decoders, Shares, decode_shares
from rota.pipeline.facts.view import GroupView
from rota.pipeline.tables import ASSIGNMENTS


class Assignments(Fact):
    """Carries the last holder of each unit: members that have gone, too, for their units have to move."""

    table = ASSIGNMENTS

    def __init__(self, state: State | None = None, decoders: Decoders | None = None) -> None:
        self.state: State = state or nothing()
        self._holders = Holders(self.state)
        self._decoders = decoders

    def add(self, event: Event, view: GroupView) -> Iterator[Row]:
        match event.kind:
            case "assignment_synced":
                yield self._assigned(event, view)
            case "member_fenced":
                self._holders.rename(event.payload["member_id"], event.payload["new_member_id"])
            case "group_emptied" | "group_deleted":
                self._holders.clear()

    def _assigned(self, event: Event, view: GroupView) -> Row:
        payload = event.payload
        shares = decode_shares(payload["assignments"], view.state["protocol_type"], self._decoders)
        if shares is None:
            self._holders.clear()
            measured = dict.fromkeys(_MEASURED)
        else:
            # Members that the leader left out hold nothing, but they are there.
            given: Shares = {member: [] for member in view.members} | shares
            measured = _measured(self._holders.assign(given, view.state["protocol_name"]))
        return row(
            ASSIGNMENTS,
            **view.key,
            **measured,
            members=len(view.members),
            generation_id=payload["generation_id"],
            at=us(event.at_ms),
            leader_id=payload["leader_id"],
            protocol_name=view.state["protocol_name"],
            resync=payload["resync"],
        )


def _measured(found: Round) -> dict[str, float | None]:
    before, after = found.before, found.after
    return {
        "round": found.number,
        "units": after.size,
        **found.change._asdict(),
        "added": len(after.units - before.units),
        "unassigned": len(before.units - after.units),
        "in_motion": len(found.in_motion),
        "imbalance": after.imbalance,
        "stddev": after.stddev,
    }


_MEASURED = tuple(_measured(Holders().assign({}, "")))
"""The columns that are null where the bytes of an assignment could not be read."""
