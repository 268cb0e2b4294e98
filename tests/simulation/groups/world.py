"""One group of programs in virtual time, drawn from a seed: troubled at first, then calm, then ended in order."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from random import Random

from rota.core.assignors import TopicPartition
from rota.core.assignors.work import WorkItem
from rota.core.types import TopicFacts
from rota.protocol.limits import Limits
from rota.protocol.messages import PutTopic
from rota.testing.virtual_time import Deadlock, Runaway, VirtualTimeLoop, run
from tests.simulation.groups import own_strategies
from tests.simulation.groups.bodies import CandidateLife, PoolLife
from tests.simulation.groups.books import Books
from tests.simulation.groups.coordinator import NAMESPACE, GroupCoordinator
from tests.simulation.groups.freezes import FreezeRule
from tests.simulation.groups.in_threads import CandidateInThreads, ConsumerInThreads, PoolInThreads
from tests.simulation.groups.life import MOST_CLOSE_S, Life
from tests.simulation.groups.link import CALM
from tests.simulation.groups.mischief import Mischief
from tests.simulation.groups.permits import PermitLife
from tests.simulation.groups.plan import CONNECT, CONSUMERS, ELECTION, PERMITS, Plan, draw_plan
from tests.simulation.groups.priorities import PreemptionRule
from tests.simulation.groups.quarantine import QuarantineRule
from tests.simulation.groups.sharing import ConnectLife, ConsumerLife, MemberLife
from tests.simulation.groups.trace import Trace
from tests.simulation.groups.verdict import leads_without_body, unrest, waits_for_a_static_member
from tests.simulation.many import quiet_logs
from tests.simulation.strands import Strands

MOST_TURNS = 400_000
MOST_CPU_S = 30.0
"""Of one world: they take a tenth of a second."""
TICK_S = 0.25
REST_S = 5.0
"""What a group may take to come to rest, beside one session timeout."""
MOST_IDLE_S = 1.0
"""How long a candidate may lead before its body runs."""


@dataclass(slots=True)
class Outcome:
    """What one seed came to."""

    seed: int
    violations: list[str]
    rebalances: int
    faults: int
    handed_over: int
    seconds: float
    """Virtual ones."""
    trace: Trace


@dataclass(slots=True, eq=False)
class Slot:
    """A place in the deployment: its process is started again when it ends, as a supervisor does it."""

    number: int
    kind: type[Life]
    instance_id: str | None
    stage: int = 0
    wanted: bool = True
    life: Life | None = None
    lives: list[Life] = field(default_factory=list)
    back_in_s: float = 0.3

    @property
    def name(self) -> str:
        return f"m{self.number}"

    @property
    def is_running(self) -> bool:
        return self.life is not None and self.life.is_live and self.life.entered


PACKETS_S = 0.05
"""By then packets have arrived that were sent in fair weather."""


class World:
    """Everything that one seed decides."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(f"groups {seed}")
        self.plan: Plan = draw_plan(seed, self.rng)
        self.is_calm = False
        self.calm_since = float("inf")
        self.stalled_until = -float("inf")
        """When the process went on after it had stood still."""
        self.slots: list[Slot] = []
        self.numbers = self.rng.randint(1, 7)
        self.work_items = self.draw_work()
        self._offsets: dict[TopicPartition, int] = {}
        self.strands: Strands

    async def main(self) -> Outcome:
        """All phases."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        self.loop = loop
        loop.set_exception_handler(lambda _loop, _context: None)
        self.trace = Trace(loop.time)
        self.books = Books(self.trace, loop.time)
        self.coordinator = GroupCoordinator(loop, Limits(initial_rebalance_delay_ms=self.rng.choice((0, 50, 200))))
        if self.plan.priorities:
            self.coordinator.watchers.append(PreemptionRule(self.coordinator, self.books).note)
        if self.plan.freezes:
            self.coordinator.watchers.append(FreezeRule(self.books).note)
        if self.plan.quarantines:
            self.coordinator.watchers.append(QuarantineRule(self.books).note)
        self.mischief = Mischief(self)
        began_at = loop.time()
        with Strands(loop) if self.plan.threads else nullcontext() as strands:
            if strands is not None:
                self.strands = strands
            await self._phases()
        return self._outcome(loop.time() - began_at)

    async def _phases(self) -> None:
        self._set_up()
        ticking = self.loop.create_task(self._tick(), name="ticker")
        await self.mischief.run()
        await self._become_calm()
        await self._end()
        ticking.cancel()

    def _outcome(self, seconds: float) -> Outcome:
        return Outcome(
            self.seed,
            self.books.violations,
            self.coordinator.rebalances,
            self.mischief.done,
            self.books.handed_over,
            seconds,
            self.trace,
        )

    def _set_up(self) -> None:
        plan = self.plan
        self.trace.note("world", "plan", plan)
        if plan.kind == CONSUMERS:
            for topic, partitions in plan.topics.items():
                self.coordinator.ask(PutTopic(NAMESPACE, topic, partitions))
            own_strategies.register_all()
            redundant = [name for name in plan.stages[0] if "redundant" in name]
            self.books.most_holders = 2 if redundant else 1
        for _ in range(plan.slots):
            self.add_slot()

    # --- phases -------------------------------------------------------------------------------

    async def _become_calm(self) -> None:
        """Take all faults away, and wait for rest."""
        self.is_calm, self.calm_since = True, self.loop.time()
        self.trace.note("world", "becomes calm")
        for life in self._all_lives():
            if not life.ledger.is_dead:
                life.link.weather = CALM
            life.reconnect()
            for link in getattr(life, "nested", ()):
                link.repair()
        session_s = self.plan.session_ms / 1000
        until = usual = self.loop.time() + self._freeze_lasts_s() + session_s + REST_S
        quiet = 0
        while quiet < 2:
            await asyncio.sleep(TICK_S)
            if waits_for_a_static_member(self):
                # Its end begins one more rebalance, with a delay for its work, so rest comes later than the end.
                until = max(until, min(usual + session_s, self.loop.time() + REST_S))
            why = unrest(self)
            quiet = 0 if why else quiet + 1
            if why and self.loop.time() >= until:
                self.books.violation("unrest", why)
                return

    def _freeze_lasts_s(self) -> float:
        group, now_ms = self.coordinator.group("g"), self.coordinator.now_ms()
        if group is None or not group.is_frozen(now_ms):
            return 0.0
        assert group.frozen_until_ms is not None
        return (group.frozen_until_ms - now_ms) / 1000

    async def _end(self) -> None:
        """Have every program leave its block."""
        for slot in self.slots:
            slot.wanted = False
        for life in self.live():
            life.stop()
        running = [life.task for life in self._all_lives() if not life.task.done()]
        if running:
            await asyncio.wait(running, timeout=MOST_CLOSE_S)
        stuck = [life for life in self._all_lives() if not life.task.done()]
        for life in stuck:
            if not life.ledger.is_dead:
                self.books.violation(
                    "does-not-end", f"{life.name} was asked to end, and has not after {MOST_CLOSE_S} s"
                )
            life.ledger.is_dead = True

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.books.check_all_holders()
            for life in self.live():
                idle_s = life.ledger.idle_s + TICK_S if leads_without_body(life) else 0.0
                if life.ledger.idle_s < MOST_IDLE_S <= idle_s:
                    self.books.violation("idle-term", f"{life.name} has led for {idle_s} s without a body that runs")
                life.ledger.idle_s = idle_s

    # --- slots --------------------------------------------------------------------------------

    def live(self) -> list[Life]:
        """The processes that run and were not asked to end."""
        return [slot.life for slot in self.slots if slot.life is not None and slot.life.is_live]

    def _all_lives(self) -> Iterator[Life]:
        for slot in self.slots:
            yield from slot.lives

    def add_slot(self) -> None:
        number = len(self.slots)
        if number >= 7:
            return
        instance_id = f"i{number}" if self.rng.random() < self.plan.static else None
        stage = max((slot.stage for slot in self.slots if slot.wanted), default=0)
        self.slots.append(Slot(number, self._kind(), instance_id, stage))
        self._start(self.slots[-1])

    def _kind(self) -> type[Life]:
        in_threads = self.rng.random() < self.plan.threads
        if self.plan.kind == CONSUMERS:
            if self.rng.random() < self.plan.pools:
                return PoolInThreads if in_threads else PoolLife
            return ConsumerInThreads if in_threads else ConsumerLife
        if self.plan.kind == PERMITS:
            return PermitLife
        if self.plan.kind == ELECTION:
            return CandidateInThreads if in_threads else CandidateLife
        return ConnectLife if self.plan.kind == CONNECT else MemberLife

    def _start(self, slot: Slot) -> None:
        if not slot.wanted or (slot.life is not None and not slot.life.task.done()):
            return  # Its successor begins when it has ended.
        name = f"{slot.name}.{len(slot.lives)}"
        life = slot.life = slot.kind(self, name, slot.instance_id, slot.stage)
        slot.lives.append(life)
        life.task.add_done_callback(lambda _: self._ended(slot, life))

    def _ended(self, slot: Slot, life: Life) -> None:
        if slot.life is life:
            self.later(0.05 if self.is_calm else slot.back_in_s, lambda: self._start(slot))

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        self.loop.call_later(seconds, act)

    def kill(self, slot: Slot, *, back_in_s: float) -> None:
        """End a process without a word; its successor comes later."""
        life, slot.life = slot.life, None
        if life is not None and not life.task.done():
            life.kill()
        self.later(back_in_s, lambda: self._start(slot))

    def restart(self, slot: Slot, *, back_in_s: float) -> None:
        """End a process in order; its successor comes later.

        That of a static one not before its packets have arrived: a join among them would fence the successor.
        """
        slot.back_in_s = back_in_s if slot.instance_id is None else max(back_in_s, PACKETS_S)
        if slot.life is not None:
            slot.life.stop()

    def retire(self, slot: Slot) -> None:
        """End a process in order, for good."""
        slot.wanted = False
        if slot.life is not None:
            slot.life.stop()

    def has_successor(self, life: Life) -> bool:
        return any(life in slot.lives and life is not slot.lives[-1] for slot in self.slots)

    # --- what there is to share ---------------------------------------------------------------

    def next_offset(self, place: TopicPartition) -> int:
        """The next offset of a partition: no program asks for a lower one after a higher one."""
        self._offsets[place] = self._offsets.get(place, 0) + 1
        return self._offsets[place]

    def quarantined(self) -> tuple[str, ...]:
        """The units that assignments of the group leave out."""
        group = self.coordinator.group(Life.group_id)
        return () if group is None else group.quarantine.names

    def topic_facts(self) -> Mapping[str, TopicFacts]:
        """What the group's strategy should go by."""
        if self.plan.counts == "mapping":
            return {topic: TopicFacts(partitions) for topic, partitions in self.plan.topics.items()}
        return self.coordinator.topics()

    def partition_counts(self) -> dict[str, int]:
        return {topic: facts.partitions for topic, facts in self.topic_facts().items()}

    def draw_work(self) -> frozenset[WorkItem]:
        connectors = [f"c{number}" for number in range(self.rng.randint(1, 3))]
        tasks = [WorkItem(name, task) for name in connectors for task in range(-1, self.rng.randint(0, 3))]
        return frozenset(tasks)


def run_seed(seed: int) -> Outcome:
    """Play one world. What went wrong is in its `violations`."""
    world = World(seed)
    with quiet_logs(), _interrupted_after(MOST_CPU_S):
        try:
            return run(world.main(), timeout=None, seed=seed, most_turns=MOST_TURNS)
        except _Blocked:
            world.books.violation("blocked", f"a turn of the event loop did not end in {MOST_CPU_S} s of CPU time")
            return world._outcome(0.0)
        except (Deadlock, Runaway) as stopped:
            world.books.violation("stuck", str(stopped))
            return world._outcome(0.0)


class _Blocked(KeyboardInterrupt):
    """A kind of exception that asyncio passes on, whichever callback it is raised in."""


@contextmanager
def _interrupted_after(cpu_s: float) -> Iterator[None]:
    """Raise `_Blocked` where the block takes longer: code that never awaits anything lets no virtual time pass."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise _Blocked

    before = signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
