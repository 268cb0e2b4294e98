"""Groups that the server assigns: members that never assign, and a replica's stand-in for the runtime's assigner."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rota.group.assignment import AssignmentJob
from rota.group.result import Timer
from rota.membership import Assigned, State
from rota.protocol.messages import Protocol
from rota.replica.owned_shard import OwnedShard
from rota.testing.member import TOPIC, Member
from rota.types import TopicFacts
from rota.types.consumer import PROTOCOL_TYPE
from rota.types.plain import decode_plain_assignment

if TYPE_CHECKING:
    from rota.testing.replica import Replica

LOOK_AGAIN_MS = 2_000


class ServedMember(Member):
    """It lists only what the server assigns, and says so in JSON."""

    protocol_type = PROTOCOL_TYPE

    def _protocols(self, version: int) -> tuple[Protocol, ...]:
        metadata = json.dumps({"topics": [TOPIC], "rack": f"v{version}"}).encode()
        return (Protocol("server:sticky", metadata),)

    def resync(self) -> bool:
        """The topic has grown. That is all that anybody has to do."""
        if self.core.state is not State.STABLE:
            return False
        self.world.grow(self.group)
        return True

    def _take_up(self, event: Assigned) -> None:
        numbers = tuple(number for _, number in decode_plain_assignment(event.assignment))
        self._hold(event.generation_id, numbers)


class SimulatedAssigner:
    """Does for a replica what `runtime.assigning` does, by the same rules; the world draws how long it takes."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._looked_after: set[tuple[OwnedShard, tuple[str, str]]] = set()

    def want(self, owned: OwnedShard, timer: Timer) -> None:
        """A generation is for the server to assign."""
        key = (timer.namespace, timer.group_id)
        self._compute(owned, key)
        if (owned, key) not in self._looked_after:
            self._looked_after.add((owned, key))
            self._later(LOOK_AGAIN_MS, owned, key)

    def _later(self, delay_ms: int, owned: OwnedShard, key: tuple[str, str]) -> None:
        self._replica.world.scheduler.after(delay_ms, self._replica, self._look_again, owned, key)

    def _look_again(self, owned: OwnedShard, key: tuple[str, str]) -> None:
        if not owned.is_dropped:
            self._compute(owned, key)
            self._later(LOOK_AGAIN_MS, owned, key)

    def _compute(self, owned: OwnedShard, key: tuple[str, str]) -> None:
        """Decide on the topics of now; it is handed in when some time has passed, and may be out of date by then."""
        world, job = self._replica.world, None if owned.is_dropped else owned.shard.assignment_job(*key)
        if job is None:
            return
        outcome: Mapping[str, bytes] | str
        if world.troublesome and world.chance(0.03):
            outcome = "no idea"
        else:
            outcome = job.side.assign(job.generation, {TOPIC: TopicFacts(world.partitions[key])})
        delay_ms = int(world.rng.random() * (1_000 if world.chance(0.1) else 20))
        world.scheduler.after(delay_ms, self._replica, self._hand_in, owned, job, outcome)

    def _hand_in(self, owned: OwnedShard, job: AssignmentJob, outcome: Mapping[str, bytes] | str) -> None:
        replica = self._replica
        ready = owned.finish_job(job, outcome, replica.now())
        records = ready.decided.records if ready is not None and ready.decided is not None else []
        for entry in records:
            if entry.record.kind == "assignment_synced":
                is_resync = entry.generation_id != job.generation.generation_id
                replica.world.sometimes("the server assigned anew" if is_resync else "the server assigned")
        if not records:
            replica.world.sometimes("an assignment came too late, or changed nothing")
        if ready is not None:
            replica.carry_out(owned, ready)
