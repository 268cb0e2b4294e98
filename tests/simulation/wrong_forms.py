"""Answers that their receivers cannot read: of another release, of another program, or of a proxy that garbles."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world import World

SHARE_OF_WORLDS = 0.2
SHARE_OF_ANSWERS = 0.1


class WrongForms:
    """Draws the messages of a world that cannot be read, of its own numbers: the other faults stay as they are."""

    def __init__(self, world: World) -> None:
        self.draws = Random(f"wrong forms/{world.seed}")
        self.is_drawn = self.draws.random() < SHARE_OF_WORLDS
        """Whether this world has any."""
        self._world = world

    def has_next(self, sender: str) -> bool:
        """Whether the next message of this sender cannot be read."""
        is_next = self.is_drawn and self._world.nemesis.active and self.draws.random() < SHARE_OF_ANSWERS
        if is_next:
            self._world.sometimes(f"{sender} answers in a wrong form")
        return is_next
