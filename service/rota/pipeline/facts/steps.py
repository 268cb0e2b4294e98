"""Steps of a group: the assignments that follow from one change, in one round or, where it is cooperative, in several.

A cooperative strategy withholds a unit until its holder has given it up (KIP-429): one assignment takes it away, and
the next one hands it on. Between the two the unit is in motion: no member holds it, yet it is not new when it comes
back. It still belongs to its last holder.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rota.assignors import UnknownAssignor, strategy
from rota.pipeline.facts.churn import Change, Holding
from rota.pipeline.facts.units import Shares

MOST_ROUNDS = 3
"""A unit that so many assignments in a row left without a holder is gone: its topic was deleted, say."""


INCREMENTAL = "incremental"


class Round(NamedTuple):
    """One assignment, seen from where each unit was last."""

    number: int
    """1, or the number of the round in its step."""
    before: Holding
    """Units in motion count with their last holder."""
    after: Holding
    change: Change
    in_motion: frozenset[str]
    """The units that wait for a next round."""


class Holders:
    """The holder of each unit of a group, or its last one. `state` is plain JSON, changed in place, to be carried."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        self.state: dict[str, Any] = nothing() if state is None else state
        self._last: Holding | None = None
        """The last assignment, if nothing has changed since."""

    def assign(self, shares: Shares, protocol_name: str) -> Round:
        """Take an assignment in. `shares` has each member, also one that gets nothing."""
        state, moving = self.state, self.state["moving"]
        before, after = self._before(), Holding(shares)
        change = after.change_from(before)
        goes_on = bool(moving) and state["members"] == sorted(shares) and after.units <= before.units
        revoked = change.revoked - sum(
            holder in shares and unit not in after.held[holder] for unit, (holder, _) in moving.items()
        )
        waiting = before.units - after.units if is_cooperative(protocol_name) is not False else frozenset()
        number = state["round"] + 1 if goes_on else 1
        handed_on = not after.units.isdisjoint(moving)
        state.update(
            shares={member: list(units) for member, units in shares.items() if units},
            moving=self._moving(before, waiting) if waiting and (revoked or handed_on or not goes_on) else {},
            members=sorted(shares),
            round=number,
        )
        self._last = after if not state["moving"] else None
        return Round(number, before, after, change._replace(revoked=revoked), frozenset(state["moving"]))

    def rename(self, old_id: str, new_id: str) -> None:
        """A static member came back under another id, and keeps its share."""
        state = self.state
        state.update(
            shares={(new_id if m == old_id else m): units for m, units in state["shares"].items()},
            moving={unit: [new_id if m == old_id else m, n] for unit, (m, n) in state["moving"].items()},
            members=sorted(new_id if m == old_id else m for m in state["members"]),
        )
        self._last = None

    def held_by(self, member_id: str) -> int:
        """How many units the member has."""
        return len(self.state["shares"].get(member_id, ()))

    def clear(self) -> None:
        self.state.update(nothing())
        self._last = None

    def _before(self) -> Holding:
        if self._last is not None:
            return self._last
        shares = {member: list(units) for member, units in self.state["shares"].items()}
        for unit, (holder, _) in self.state["moving"].items():
            shares.setdefault(holder, []).append(unit)
        return Holding(shares)

    def _moving(self, before: Holding, waiting: frozenset[str]) -> dict[str, list[Any]]:
        known = self.state["moving"]
        found = {}
        for holder, share in before.shares.items():
            for unit in share:
                if unit in waiting and (age := known.get(unit, (holder, 0))[1] + 1) <= MOST_ROUNDS:
                    found[unit] = [holder, age]
        return found


def is_cooperative(protocol_name: str) -> bool | None:
    """Whether members keep what they hold while they join; None for a strategy that this process does not know.

    Work of connectors is shared incrementally, by the server as well as by a leader (KIP-415). The server assigns by no
    other cooperative strategy, so other names that begin with `server:` need no look.
    """
    if protocol_name.removeprefix("server:") == INCREMENTAL:
        return True
    if protocol_name.startswith("server:"):
        return False
    try:
        return strategy(protocol_name).cooperative
    except UnknownAssignor:
        return None


def nothing() -> dict[str, Any]:
    """The state of a group without any share, now or before."""
    return {"shares": {}, "moving": {}, "members": [], "round": 0}
