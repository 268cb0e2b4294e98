"""How replicas assign in a world: late, or with an error; and the notifications of topics that they lose."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from rota.core.replica.assigning import Compute, Outcome
from rota.server.runtime import assigning

if TYPE_CHECKING:
    from tests.simulation.world import World


class Assigning:
    """It draws from its own stream, so that worlds in which no replica assigns do not depend on it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = Random(f"{world.seed}:topics")

    def is_notification_lost(self) -> bool:
        """Is a peer not notified of a change?"""
        is_lost = self._world.troublesome and self._rng.random() < 0.3
        if is_lost:
            self._world.sometimes("notification of a topic change lost")
        return is_lost

    async def compute(self, do: Compute) -> Outcome:
        """Compute as production does, later: slow computations are more frequent once nothing else happens."""
        world = self._world
        if do.owned.is_dropped:
            world.violation(f"L11 shard {do.owned.shard_id} was dropped, and {do.job.group_id} is assigned here")
        if world.troublesome and self._rng.random() < 0.03:
            return "no idea"
        is_slow = self._rng.random() < (0.1 if world.troublesome else 0.5)
        await asyncio.sleep(self._rng.random() * (1 if is_slow else 0.02))
        return await assigning.compute(do)
