"""Planted bugs in the members' own rules."""

from __future__ import annotations

from typing import Any

from rota.core.membership import answers, machine
from rota.core.membership.events import Event
from tests.simulation.registry import Patch, mutant


@mutant
def a_term_is_counted_from_the_election(patch: Patch) -> None:
    """S7c: a member that an election took along leads by its own reckoning after its session, and the next one leads
    as well.
    """
    original = answers.enter_offered

    def enter_offered(standing: Any, now_ms: int) -> list[Event]:
        if standing.offer is not None:
            standing.deadline.renewed(now_ms)
            standing.deadline.settled(now_ms)
        return original(standing, now_ms)

    patch(machine, "enter_offered", enter_offered)
