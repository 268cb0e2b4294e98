"""Every assignment: how even it is, and how much it moved against the least possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields

from rota.pipeline.facts.churn import Churn, Holding, churn
from rota.pipeline.facts.fact import Event, Fact, Row, State, row, us
from rota.pipeline.facts.units import Decoder, Shares, decode_shares
from rota.pipeline.facts.view import GroupView
from rota.pipeline.tables import ASSIGNMENTS

_UNREADABLE = dict.fromkeys(field.name for field in fields(Churn))


class Assignments(Fact):
    """Carries who held what last: members that have gone, too, for their units have to move."""

    table = ASSIGNMENTS

    def __init__(self, state: State | None = None, decoder: Decoder | None = None) -> None:
        self.state: State = state or {"shares": {}}
        self._decoder = decoder

    def add(self, event: Event, view: GroupView) -> Iterator[Row]:
        match event.kind:
            case "assignment_synced":
                yield self._assigned(event, view)
            case "member_fenced":
                old_id, new_id = event.payload["member_id"], event.payload["new_member_id"]
                self.state["shares"] = {(new_id if m == old_id else m): s for m, s in self.state["shares"].items()}
            case "group_emptied" | "group_deleted":
                self.state["shares"] = {}

    def _assigned(self, event: Event, view: GroupView) -> Row:
        payload = event.payload
        shares = decode_shares(payload["assignments"], view.state["protocol_type"], self._decoder)
        # Members that the leader left out hold nothing, but they are there.
        after: Shares | None = None if shares is None else {m: [] for m in view.members} | shares
        found = None if after is None else churn(Holding(self.state["shares"]), Holding(after))
        measured = _UNREADABLE if found is None else asdict(found)
        self.state["shares"] = {} if after is None else {m: units for m, units in after.items() if units}
        return row(
            ASSIGNMENTS,
            **view.key,
            **{**measured, "members": len(view.members)},
            generation_id=payload["generation_id"],
            at=us(event.at_ms),
            leader_id=payload["leader_id"],
            protocol_name=view.state["protocol_name"],
            resync=payload["resync"],
        )
