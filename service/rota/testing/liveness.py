"""The simulated liveness store: slow, away, flushed, or back with an older copy; and a replica's way to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from copy import deepcopy
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from rota.group.sessions import MemberName
from rota.group.state import Timer
from rota.liveness.memory import MemoryLiveness
from rota.protocol.messages import Heartbeat, HeartbeatMany
from rota.replica import shared_liveness as step
from rota.replica.owned_shard import PUBLISH_MS, OwnedShard
from rota.replica.ports import Answer, SeenMembers, ShardNews
from rota.replica.shared_liveness import AWAY_MS, UNAVAILABLE, Found, SharedLiveness, Step, Steps
from rota.testing.scheduler import Process

if TYPE_CHECKING:
    from rota.testing.replica import Replica
    from rota.testing.world import World

Result = TypeVar("Result")

TIMEOUT_MS = 200
"""As in `RedisLiveness`."""


class LivenessServer(MemoryLiveness):
    """What survives the replicas. `faults_ms` are the times at which it lost or withheld something."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda: world.scheduler.now_ms)
        self._world = world
        self.slow_until_ms = 0
        self.away_until_ms = 0
        self.faults_ms: list[tuple[int, int]] = []
        """Spans of time in which it was not to be relied on."""
        self.published_ms: dict[int, list[int]] = defaultdict(list)
        """When the owner of each shard published."""
        self._copy = self._contents()
        if world.wrong_forms.is_drawn:
            world.scheduler.after(world.wrong_forms.draws.randrange(4_000), None, self._spoil)

    def submit(
        self,
        process: Process,
        command: Callable[[], Coroutine[Any, Any, Result]],
        done: Callable[[tuple[Result] | tuple[Exception] | None], None],
    ) -> None:
        """One message to the server and one back; `done` gets None if the answer does not come in time, and an
        exception if the client cannot read it.
        """
        world = self._world
        sent_ms, rng = world.scheduler.now_ms, world.rng
        there_ms = 1 + int(rng.random() * (300 if sent_ms < self.slow_until_ms else 2))
        outcomes = count()

        def run() -> None:
            if world.scheduler.now_ms >= self.away_until_ms:
                answer = _finished(command())
                is_wrong = world.wrong_forms.has_next("the liveness store")
                found = (ValueError("not what a replica has written"),) if is_wrong else (answer,)
                world.scheduler.after(1 + int(rng.random() * 2), process, settle, found)

        def settle(answer: tuple[Result] | tuple[Exception] | None) -> None:
            if next(outcomes):
                return
            if answer is None or isinstance(answer[0], Exception):
                world.sometimes("the liveness store did not answer")
                self.faults_ms.append((sent_ms, world.scheduler.now_ms))
            done(answer)

        world.scheduler.after(there_ms, None, run)
        world.scheduler.after(TIMEOUT_MS, process, settle, None)

    async def publish(self, news: Sequence[ShardNews]) -> list[int]:
        for each in news:
            self.published_ms[each.shard_id].append(self._world.scheduler.now_ms)
        return await super().publish(news)

    def _spoil(self) -> None:
        """Another program overwrites the key of a shard; later, that is removed."""
        shard_id, for_ms = self._world.wrong_forms.draws.randrange(self._world.profile.shards), 2_000
        now_ms = self._world.scheduler.now_ms
        self._world.sometimes("another program overwrites a key of the liveness store")
        self.spoiled.add(shard_id)
        self.faults_ms.append((now_ms, now_ms + for_ms + AWAY_MS))
        self._world.scheduler.after(for_ms, None, self.spoiled.clear)

    def has_failed(self, from_ms: int, to_ms: int) -> bool:
        """Was there a moment in this span of time at which it was not to be relied on?"""
        return any(began_ms <= to_ms and ended_ms >= from_ms for began_ms, ended_ms in self.faults_ms)

    def keep_copy(self) -> None:
        """A standby is brought up to date."""
        self._copy = self._contents()

    def go_back(self) -> None:
        """A standby that was behind takes over."""
        self._seen, self._published = deepcopy(self._copy)

    def _contents(self) -> tuple[dict[int, dict[MemberName, int]], dict[int, int]]:
        return deepcopy((self._seen, self._published))


def _finished(command: Coroutine[Any, Any, Result]) -> Result:
    """The result of a method of the twin, none of which ever waits."""
    try:
        command.send(None)
    except StopIteration as ended:
        found: Result = ended.value
        return found
    raise AssertionError("the liveness twin waits")


class SimulatedSessions:
    """The shell of production's `SharedLiveness` in a simulated replica."""

    def __init__(self, world: World, replica: Replica, server: LivenessServer) -> None:
        self._world = world
        self._replica = replica
        self._server = server
        self._shared = SharedLiveness()
        self._asking: list[tuple[OwnedShard, Timer]] = []
        self._is_asking = False
        self.forget = self._shared.forget
        self._publish_later()

    def read(self, shard_id: int, done: Callable[[SeenMembers], None]) -> None:
        """See `SharedLiveness.read`."""

        def found(seen: SeenMembers) -> None:
            if seen.published_ms_ago is not None:
                self._world.sometimes("a new owner read what was left of sessions")
            done(seen)

        self._carry_out(self._shared.read(shard_id, self._replica.now()), found)

    def record(self, shard_id: int, request: Heartbeat | HeartbeatMany, done: Callable[[Answer | None], None]) -> None:
        """See `SharedLiveness.record`."""

        def recorded(answer: Answer | None) -> None:
            self._world.sometimes("heartbeat recorded for a silent owner" if answer else "heartbeat without an owner")
            done(answer)

        self._carry_out(self._shared.record(shard_id, request), recorded)

    def ask(self, owned: OwnedShard, timer: Timer) -> None:
        """This timer would expire its member: the other replicas are asked first."""
        self._asking.append((owned, timer))
        self._world.scheduler.after(0, self._replica, self._ask)

    def _ask(self) -> None:
        if self._asking and not self._is_asking:
            asking, self._asking, self._is_asking = self._asking, [], True
            timers = [(owned.shard_id, timer) for owned, timer in asking]
            self._carry_out(self._shared.ask_others(timers), partial(self._asked, asking))

    def _asked(self, asking: list[tuple[OwnedShard, Timer]], answers: Sequence[int | None]) -> None:
        for (owned, timer), seen_ms_ago in zip(asking, answers, strict=True):
            if self._replica.owned.get(owned.shard_id) is owned:
                ready = owned.others_answered(timer, seen_ms_ago, self._replica.now())
                if ready.decided is not None and not ready.decided.records:
                    self._world.sometimes("another replica had seen a member whose session was over")
                self._replica.carry_out(owned, ready)
        self._is_asking = False
        self._ask()

    def _publish_later(self, _published: None = None) -> None:
        self._world.scheduler.after(PUBLISH_MS, self._replica, self._publish)

    def _publish(self) -> None:
        shards = list(self._replica.owned.values())
        self._carry_out(self._shared.publish(shards, self._replica.now()), self._publish_later)

    def _carry_out(self, steps: Steps[Found], done: Callable[[Found], None]) -> None:
        def go_on(do: Step) -> None:
            self._server.submit(self._replica, lambda: self._command(do), answered)

        def answered(answer: tuple[Any] | None) -> None:
            found = UNAVAILABLE if answer is None or isinstance(answer[0], Exception) else answer[0]
            try:
                do = steps.send((found, self._replica.now()))
            except StopIteration as end:
                done(end.value)
            else:
                go_on(do)

        try:
            first = next(steps)
        except StopIteration as end:
            done(end.value)
        else:
            go_on(first)

    def _command(self, do: Step) -> Coroutine[Any, Any, Any]:
        match do:
            case step.Ping():
                return self._server.ping()
            case step.Publish(updates):
                return self._server.publish(updates)
            case step.ReadShard(shard_id):
                return self._server.read(shard_id)
            case step.LastSeen(members):
                return self._server.seen_ms_ago(members)
            case step.RecordHeartbeats(shard_id, names):
                return self._server.record(shard_id, names)
