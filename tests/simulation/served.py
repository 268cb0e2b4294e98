"""Groups that the server assigns: members that never assign, the topics of a world, and the shell that assigns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from rota.core.group.state import Group
from rota.core.membership import Assigned, State
from rota.core.replica.assigning import Compute, Outcome
from rota.core.types.consumer import PROTOCOL_TYPE, decode_plain_assignment
from rota.core.types.worker import PROTOCOL_NAME, decode_share
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Protocol, PutTopic, Reply
from rota.server.runtime import assigning
from tests.simulation.member import TOPIC, Member
from tests.simulation.network import Client

if TYPE_CHECKING:
    from tests.simulation.world import World

RETRY_MS = 100
TIMEOUT_MS = 2_000


class ServedMember(Member):
    """It lists only what the server assigns, and says so in JSON."""

    protocol_type = PROTOCOL_TYPE

    def _protocols(self, version: int) -> tuple[Protocol, ...]:
        said = {"topics": [TOPIC], "rack": f"v{version}", "topics_debounce_ms": self.world.topics.debounce_ms}
        return (Protocol("server:sticky", json.dumps(said).encode()),)

    def resync(self) -> bool:
        """The topic has grown. No other step is needed."""
        if self.core.state is not State.STABLE:
            return False
        self.world.grow(self.group)
        return True

    def _take_up(self, event: Assigned) -> None:
        numbers = tuple(number for _, number in decode_plain_assignment(event.assignment))
        self._hold(event.generation_id, numbers)


def all_shares(group: Group) -> list[int]:
    """The partitions that members of a group have been assigned."""
    shares = (places_in(group.protocol_name, each.assignment) for each in group.members.values() if each.assignment)
    return sorted(number for share in shares for _, number in share if number >= 0)


def places_in(protocol_name: str | None, share: bytes) -> Sequence[tuple[str, int]]:
    """What a member is assigned by the server: partitions, or a connector (its number is -1) and tasks."""
    return decode_share(share).run if protocol_name == PROTOCOL_NAME else decode_plain_assignment(share)


class RegisteredTopics:
    """The topic of the groups that the server assigns, as an administrator registers it at the coordinator.

    The administrator retries until the coordinator has acknowledged the latest count of partitions. It draws from its
    own stream, so that worlds without such groups do not depend on it.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.rng = Random(f"{world.seed}:topics")
        self.debounce_ms = self.rng.choice((0, 0, 700))
        """For how long members say that changes collect."""
        self.are_connectors = self.rng.random() < 0.5
        """The group that the server assigns shares connectors and tasks, not partitions."""
        self._admin = Client("topics")
        self._acknowledged = 0

    def is_registered(self) -> bool:
        """Does the coordinator know the latest count of partitions?"""
        return self._acknowledged == self._world.partitions[next(iter(self._world.served))]

    def changed(self) -> None:
        """Register the topic with the partitions that it has now."""
        namespace, group_id = next(iter(self._world.served))
        partitions = self._world.partitions[(namespace, group_id)]

        def settle(reply: Reply | None) -> None:
            is_latest = self._world.partitions[(namespace, group_id)] == partitions
            if reply is not None and reply.error is ErrorCode.NONE:
                self._acknowledged = max(self._acknowledged, partitions)
            elif is_latest:
                self._world.scheduler.after(RETRY_MS, None, self.changed)

        self._world.network.call(self._admin, PutTopic(namespace, TOPIC, partitions), TIMEOUT_MS, settle)

    def is_notification_lost(self) -> bool:
        """Is a peer not notified of a change?"""
        is_lost = self._world.troublesome and self.rng.random() < 0.3
        if is_lost:
            self._world.sometimes("notification of a topic change lost")
        return is_lost

    async def compute(self, do: Compute) -> Outcome:
        """Compute as production does, later: slow computations are more frequent once nothing else happens."""
        world = self._world
        if do.owned.is_dropped:
            world.violation(f"L11 shard {do.owned.shard_id} was dropped, and {do.job.group_id} is assigned here")
        if world.troublesome and self.rng.random() < 0.03:
            return "no idea"
        is_slow = self.rng.random() < (0.1 if world.troublesome else 0.5)
        await asyncio.sleep(self.rng.random() * (1 if is_slow else 0.02))
        return await assigning.compute(do)
