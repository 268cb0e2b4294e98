"""The parts that a world leaves out, to be a shorter one: kinds of acts, single acts, places for members."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from tests.simulation.profiles import Profile

PROBABILITIES = ("late_answers", "loss", "lost_statements", "slow_answers", "stalled_statements")
"""Faults that the network and the store draw for each message, by the profile's field."""


@dataclass(frozen=True, slots=True)
class Without:
    """Written as `crash_replica,loss,g0.2,#17,until=3500`; see `parse`."""

    names: frozenset[str] = frozenset()
    """Kinds of acts by the name of the nemesis's method, probabilities, and places for members by group and slot."""
    acts: frozenset[int] = frozenset()
    """Single acts, by their number in the world that leaves out everything else that this does."""
    until_ms: int | None = None
    """The faults end then, if not before."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """From the command line."""
        parts = [part for part in text.split(",") if part]
        until = [int(part.removeprefix("until=")) for part in parts if part.startswith("until=")]
        acts = frozenset(int(part[1:]) for part in parts if part.startswith("#"))
        names = frozenset(part for part in parts if not part.startswith(("#", "until=")))
        return cls(names, acts, until[0] if until else None)

    def __str__(self) -> str:
        until = [f"until={self.until_ms}"] if self.until_ms is not None else []
        return ",".join([*sorted(self.names), *(f"#{number}" for number in sorted(self.acts)), *until])

    def and_names(self, names: Iterable[str]) -> Without:
        return replace(self, names=self.names | frozenset(names))

    def and_acts(self, acts: Iterable[int]) -> Without:
        return replace(self, acts=self.acts | frozenset(acts))

    def of(self, profile: Profile) -> Profile:
        """The profile that is left."""
        zeros: dict[str, Any] = {name: 0.0 for name in PROBABILITIES if name in self.names}
        until_ms = min(profile.safety_ms, self.until_ms) if self.until_ms is not None else profile.safety_ms
        return replace(profile, safety_ms=until_ms, **zeros)


NOTHING = Without()
assert set(PROBABILITIES) <= {field.name for field in fields(Profile)}
