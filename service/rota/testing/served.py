"""Groups that the server assigns: members that never assign, the topics of a world, and the shell that assigns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, cast

from rota.group.state import Group, Timer
from rota.membership import Assigned, State
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import ListedTopic, ListTopicsReply, Protocol
from rota.replica.assigning import AskTopics, Assigning, Compute
from rota.replica.owned_shard import OwnedShard, Ready
from rota.replica.ports import Answer
from rota.testing.member import TOPIC, Member
from rota.types.consumer import PROTOCOL_TYPE
from rota.types.plain import decode_plain_assignment
from rota.types.worker import decode_share
from rota.types.worker_server import PROTOCOL_NAME

if TYPE_CHECKING:
    from rota.testing.replica import Replica
    from rota.testing.world import World


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


class SimulatedTopics:
    """The topics of the world's namespace, as its replicas list them: late, or not at all.

    It draws from its own stream, so that worlds without such groups do not depend on it.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.rng = Random(f"{world.seed}:topics")
        self.refusals = 0
        """So many listings fail, where the world is not troublesome."""
        self.debounce_ms = self.rng.choice((0, 0, 700))
        """For how long members say that changes collect."""
        self.are_connectors = self.rng.random() < 0.5
        """The group that the server assigns shares connectors and tasks, not partitions."""

    def is_registered(self) -> bool:
        """Does the coordinator know the latest count of partitions?"""
        return True

    def changed(self) -> None:
        """Notify each replica. A notification may be lost, as one of a peer may."""
        for replica in self._world.replicas.values():
            if self._world.troublesome and self.rng.random() < 0.3:
                self._world.sometimes("notification of a topic change lost")
            else:
                assigner = cast("Replica", replica).assigner
                self._world.scheduler.after(1 + int(self.rng.random() * 4), replica, assigner.topics_changed)

    def list(self, replica: Replica, key: tuple[str, str], done: Callable[[Answer], None]) -> None:
        """Answer some time later: with the partitions that the group's topic has then, or that they are unknown."""
        delay_ms = 1 + int(self.rng.random() * (400 if self._world.troublesome and self.rng.random() < 0.1 else 5))
        self._world.scheduler.after(delay_ms, replica, lambda: done(Answer(self._reply(key))))

    def _reply(self, key: tuple[str, str]) -> ListTopicsReply:
        if self._is_refused():
            self._world.sometimes("topics were unknown")
            return ListTopicsReply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return ListTopicsReply(topics=(ListedTopic(TOPIC, self._world.partitions[key]),))

    def _is_refused(self) -> bool:
        if self._world.troublesome:
            return self.rng.random() < 0.1
        self.refusals -= 1
        return self.refusals >= 0


class SimulatedAssigner:
    """The shell of production's `Assigning` in a simulated replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._assigning = Assigning()
        self._wake_ms: int | None = None
        """When it is woken next."""

    def want(self, owned: OwnedShard, timer: Timer) -> None:
        """A generation is for the server to assign."""
        self._assigning.want(owned, timer, self._now_ms)
        self._go_on()

    def topics_changed(self) -> None:
        """The topic has grown."""
        for namespace, _ in self._replica.world.served:
            self._assigning.topics_changed(namespace, self._now_ms)
        self._go_on()

    @property
    def _now_ms(self) -> int:
        return self._replica.now().monotonic_ms

    def _go_on(self) -> None:
        for do in self._assigning.next(self._now_ms):
            match do:
                case AskTopics():
                    self._list(do)
                case Compute():
                    self._compute(do)
        wake_ms = self._assigning.wake_ms(self._now_ms)
        if wake_ms is not None and wake_ms != self._wake_ms:
            self._wake_ms = wake_ms
            self._replica.world.scheduler.after(wake_ms - self._now_ms, self._replica, self._go_on)

    def _list(self, do: AskTopics) -> None:
        def listed(answer: Answer) -> None:
            self._assigning.listed(do, answer, self._now_ms)
            self._go_on()

        world = self._replica.world
        # There is at most one such group in a world, so the topic has as many partitions as that group's.
        world.topics.list(self._replica, next(iter(world.served)), listed)

    def _compute(self, do: Compute) -> None:
        """Decide on the topics that were listed; it is handed in when some time has passed."""
        world, rng = self._replica.world, self._replica.world.topics.rng
        if do.owned.is_dropped:
            world.violation(f"L11 shard {do.owned.shard_id} was dropped, and {do.job.group_id} is assigned here")
        outcome: Mapping[str, bytes] | str
        if world.troublesome and rng.random() < 0.03:
            outcome = "no idea"
        else:
            outcome = do.assign()
        # Slow ones are frequent where nothing else happens, so that topics change meanwhile there, too.
        delay_ms = int(rng.random() * (1_000 if rng.random() < (0.1 if world.troublesome else 0.5) else 20))
        world.scheduler.after(delay_ms, self._replica, self._hand_in, do, outcome)

    def _hand_in(self, do: Compute, outcome: Mapping[str, bytes] | str) -> None:
        replica = self._replica
        ready = do.owned.finish_job(do.job, outcome, replica.now())
        self._note(do, ready)
        if ready is not None:
            replica.carry_out(do.owned, ready)
        self._assigning.handed_in(do, outcome, taken=ready is not None)
        self._go_on()

    def _note(self, do: Compute, ready: Ready | None) -> None:
        records = ready.decided.records if ready is not None and ready.decided is not None else []
        for entry in records:
            if entry.record.kind == "assignment_synced":
                is_resync = entry.generation_id != do.job.generation.generation_id
                self._replica.world.sometimes("the server assigned anew" if is_resync else "the server assigned")
        if not records:
            self._replica.world.sometimes("an assignment came too late, or changed nothing")
