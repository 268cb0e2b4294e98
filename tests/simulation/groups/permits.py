"""Programs that hold permits, and what must hold of them: one holder for each, at most N, and tokens that rise."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from rota.client import Permit, Term
from rota.client.permits import PermitCandidacy
from tests.simulation.groups.bodies import CandidateLife
from tests.simulation.groups.life import Life
from tests.simulation.groups.rules import Place


class PermitLife(CandidateLife):
    """A member that works while it has a permit, and writes to a fenced resource."""

    wish = 1
    permit: Permit | None = None

    def _candidacy(self) -> PermitCandidacy:
        plan = self.world.plan
        self.is_static = False  # The end of its block gives the permit back all the same.
        self.wish = Random(f"wish {self.world.seed} {self.name}").choice(plan.permits)
        permits = self.client.permits(
            self.group_id,
            self.wish,
            session_timeout=plan.session_ms / 1000,
            rebalance_timeout=plan.rebalance_ms / 1000,
            group_instance_id=self.instance_id,
        )
        return permits._candidacy

    def place(self, term: Term) -> Place:
        assert isinstance(term, Permit)
        self.permit = term
        place = f"permit {term.number}"
        self.world.rules.granted(self, place, term.fencing_token, max(self.world.plan.permits))
        return place

    def write(self) -> None:
        assert self.permit is not None
        self.world.rules.writes(self, f"permit {self.permit.number}", self.permit.fencing_token)


def wrong_holders(lives: Sequence[Life]) -> str:
    """Why the permits are not held by as many members as there are permits, or members; empty if they are.

    A permit that was granted before another member asked for fewer is held all the same.
    """
    wishes = [life.wish for life in lives if isinstance(life, PermitLife)]
    held = [place for life in lives if life.is_valid() for place in life.bodies]
    fewest, most = min(*wishes, len(lives)), min(max(wishes), len(lives))
    is_right = fewest <= len(held) <= most and len(set(held)) == len(held)
    return (
        "" if is_right else f"permits whose body runs: {sorted(map(str, held))}; {len(lives)} members ask for {wishes}"
    )
