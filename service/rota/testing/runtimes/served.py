"""Groups that the production runtime assigns: a topic that grows, and assignments that take their time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import PutTopic, Reply
from rota.replica.assigning import Compute, Outcome
from rota.runtime import assigning
from rota.testing.member import TOPIC
from rota.testing.network import Client
from rota.testing.served import SimulatedTopics

if TYPE_CHECKING:
    from rota.testing.runtimes.world import RuntimeWorld

RETRY_MS = 100
TIMEOUT_MS = 2_000


class RegisteredTopics(SimulatedTopics):
    """The topic of the groups that the server assigns, as an administrator registers it at the coordinator.

    The administrator retries until the coordinator has acknowledged the latest count of partitions.
    """

    def __init__(self, world: RuntimeWorld) -> None:
        super().__init__(world)
        self._runtimes = world
        self._admin = Client("topics")
        self._acknowledged = 0

    def is_registered(self) -> bool:
        return self._acknowledged == self._runtimes.partitions[next(iter(self._runtimes.served))]

    def changed(self) -> None:
        """Register the topic with the partitions that it has now."""
        namespace, group_id = next(iter(self._runtimes.served))
        partitions = self._runtimes.partitions[(namespace, group_id)]

        def settle(reply: Reply | None) -> None:
            is_latest = self._runtimes.partitions[(namespace, group_id)] == partitions
            if reply is not None and reply.error is ErrorCode.NONE:
                self._acknowledged = max(self._acknowledged, partitions)
            elif is_latest:
                self._runtimes.scheduler.after(RETRY_MS, None, self.changed)

        self._runtimes.network.call(self._admin, PutTopic(namespace, TOPIC, partitions), TIMEOUT_MS, settle)

    def is_notification_lost(self) -> bool:
        """Is a peer not notified of a change?"""
        is_lost = self._runtimes.troublesome and self.rng.random() < 0.3
        if is_lost:
            self._runtimes.sometimes("notification of a topic change lost")
        return is_lost

    async def compute(self, do: Compute) -> Outcome:
        """Compute as production does, later: slow computations are more frequent once nothing else happens."""
        world = self._runtimes
        if do.owned.is_dropped:
            world.violation(f"L11 shard {do.owned.shard_id} was dropped, and {do.job.group_id} is assigned here")
        if world.troublesome and self.rng.random() < 0.03:
            return "no idea"
        is_slow = self.rng.random() < (0.1 if world.troublesome else 0.5)
        await asyncio.sleep(self.rng.random() * (1 if is_slow else 0.02))
        return await assigning.compute(do)
