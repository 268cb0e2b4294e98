"""A simulated candidate of an election: it leads, ends its work when it is asked to hand over, and joins again."""

from __future__ import annotations

from functools import cached_property
from random import Random

from rota.core.membership import Assigned
from rota.core.types.leader import PROTOCOL_NAMES, PROTOCOL_TYPE, Candidate, encode_candidate, successor_of
from rota.protocol.messages import Protocol
from tests.simulation.cooperative import CooperativeMember
from tests.simulation.operators import ForcedRebalances

PRIORITIES = 3
HOLDS_MS = (0, 300, 800, 800, None)
"""For how long a candidate must have outranked the leader; None: it preempts no leader."""
LEADERSHIP = (0,)
"""The leader's share: the one thing that there is to hold."""


class CandidateMember(CooperativeMember):
    """Its metadata is made by the SDK's own code. Priorities are drawn from a stream of each candidate's own."""

    protocol_type = PROTOCOL_TYPE

    @cached_property
    def _hold_ms(self) -> int | None:
        return Random(f"hold/{self.world.seed}/{self.name}").choice(HOLDS_MS)

    @cached_property
    def _is_silent(self) -> bool:
        """It does not say whether it is at work.

        Such a leader is passed over at once where an operator has it step down: only its token ends its work (ADR 63).
        """
        return (
            ForcedRebalances.name not in self.world.parts.beside
            and Random(f"silent/{self.world.seed}/{self.name}").random() < 0.15
        )

    def _protocols(self, version: int) -> tuple[Protocol, ...]:
        priority = Random(f"priority/{self.world.seed}/{self.name}/{version}").randrange(PRIORITIES)
        holding = None if self._is_silent else bool(self.holds)
        said = Candidate(f"v{version}", priority, self._hold_ms, holding)
        return (Protocol(PROTOCOL_NAMES[self.world.seed % 2], encode_candidate(said)),)

    def resync(self) -> bool:
        """The coordinator makes the shares."""
        return False

    def _take_up(self, event: Assigned) -> None:
        """A leader that is asked to hand over holds the leadership until its work has ended."""
        self._hold(event.generation_id, LEADERSHIP if event.is_leader else ())
        self._giving_up = None
        if event.is_leader and not self._is_silent and successor_of(event.assignment):
            self.world.sometimes("a leader was asked to hand over")
            self._giving_up = self._held
            self.world.scheduler.after(self._revoke_ms(), self, self._gave_up, self._held, ())
