"""Users' programs against the replicas of a world: real consumers, pools, workers, elections, members and permits."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from random import Random

from rota.core.assignors import TopicPartition
from rota.core.assignors.work import WorkItem
from rota.core.group.state import Group
from rota.core.types import TopicFacts
from rota.protocol.errors import ErrorCode
from rota.protocol.ids import shard_of
from rota.protocol.limits import Limits
from rota.protocol.messages import PutTopic, Reply
from tests.simulation.checks import check
from tests.simulation.groups import own_strategies
from tests.simulation.groups.bodies import CandidateLife, PoolLife
from tests.simulation.groups.in_threads import CandidateInThreads, ConsumerInThreads, PoolInThreads
from tests.simulation.groups.life import MOST_CLOSE_S, Life
from tests.simulation.groups.nemesis import ProgramNemesis
from tests.simulation.groups.permits import PermitLife
from tests.simulation.groups.plan import CONNECT, CONSUMERS, ELECTION, PERMITS, draw_plan
from tests.simulation.groups.rules import ProgramRules
from tests.simulation.groups.sharing import ConnectLife, ConsumerLife, MemberLife
from tests.simulation.groups.verdict import leads_without_body, unrest
from tests.simulation.history import GroupKey, History
from tests.simulation.nemesis import FOR_EVER_MS
from tests.simulation.profiles import Parts, Profile
from tests.simulation.store import READ_TIMEOUT_MS
from tests.simulation.threads import SimulatedThreads
from tests.simulation.without import NOTHING, Without
from tests.simulation.world import World

TICK_MS = 250
MOST_IDLE_S = 1.0
"""How long a candidate may lead before its body runs."""
MOST_PROGRAMS = 7
PACKETS_S = 0.05
"""By then packets have arrived that were sent in fair weather."""
RETRY_MS = 100
CONVERGE_MS = 10_000
"""What a group may take to come to rest, beside two session timeouts."""


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


class ProgramWorld(World):
    """A world with one group of programs. What they draw has a stream of its own."""

    nemesis: ProgramNemesis

    def __init__(self, seed: int, profile: Profile | None = None, without: Without = NOTHING) -> None:
        """The plan of the seed takes the place of a `profile`."""
        self.draws = Random(f"groups {seed}")
        self.plan = draw_plan(seed, self.draws)
        self.is_calm = False
        self.calm_since = float("inf")
        self.programs: list[Slot] = []
        self.numbers = self.draws.randint(1, 7)
        self.work_items = self.draw_work()
        self.rules = ProgramRules(self)
        self.threads = SimulatedThreads()
        self._offsets: dict[TopicPartition, int] = {}
        super().__init__(seed, self._profile(), without)

    def _profile(self) -> Profile:
        plan, has_faults = self.plan, self.plan.has("replicas")
        return Profile(
            "programs",
            replicas=self.draws.choice((1, 2, 3)) if has_faults else 1,
            shards=self.draws.choice((1, 2)) if has_faults else 1,
            groups=1,
            slots=0,
            safety_ms=int(1000 * plan.faults_s),
            converge_ms=(READ_TIMEOUT_MS if has_faults else 0) + CONVERGE_MS + 2 * plan.session_ms,
            lease_ms=2_000,
            session_ms=(plan.session_ms, plan.session_ms),
            rebalance_ms=(plan.rebalance_ms, plan.rebalance_ms),
            initial_rebalance_delay_ms=self.draws.choice((0, 50, 200)),
            churn_every_ms=FOR_EVER_MS,
            admin_every_ms=0,
            fault_every_ms=3_000 if has_faults else 0,
            loss=plan.loss,
            slow_answers=plan.loss,
            stalled_statements=0.01 if has_faults else 0.0,
            lost_statements=0.01 if has_faults else 0.0,
            late_answers=0.01 if has_faults else 0.0,
        )

    def _parts(self, profile: Profile) -> Parts:
        beside = frozenset({"freeze_group"}) if self.plan.freezes else frozenset()
        return Parts(forwards=self.seed % 2 == 0, steals=profile.replicas == 1, beside=beside)

    def _limits(self) -> Limits:
        return Limits(initial_rebalance_delay_ms=self.profile.initial_rebalance_delay_ms)

    def _new_nemesis(self) -> ProgramNemesis:
        return ProgramNemesis(self)

    # --- phases -------------------------------------------------------------------------------

    def run(self) -> History:
        before = random.getstate()
        random.seed(self.seed)  # The SDK draws its pauses from it.
        try:
            with self.threads if self.plan.threads else nullcontext():
                self._set_up()
                return super().run()
        finally:
            random.setstate(before)

    def _set_up(self) -> None:
        plan = self.plan
        self.note("world", "plan", plan)
        if plan.kind == CONSUMERS or plan.connects_topics:
            for topic, partitions in plan.topics.items():
                self.register(topic, partitions)
        if plan.kind == CONSUMERS:
            own_strategies.register_all()
            self.rules.most_holders = 2 if any("redundant" in name for name in plan.stages[0]) else 1
        for _ in range(plan.slots):
            self.add_slot()
        self._tick()

    def _wait_for_peace(self) -> None:
        """L7: once all faults are over, the group comes to rest. Then every program leaves its block."""
        self.is_calm = True
        for life in self._all_lives():
            life.transport.refuses_until_ms = 0
            life.transport.reset()
        super()._wait_for_peace()
        if self.plan.follows_topics:
            self._check_growth()
        self.calm_since = self.now_s
        for slot in self.programs:
            slot.wanted = False
        for life in self.live():
            life.stop()
        end_ms = self.scheduler.now_ms + int(1000 * MOST_CLOSE_S)
        while (stuck := self._stuck()) and self.scheduler.now_ms < end_ms:
            self.scheduler.run_until(self.scheduler.now_ms + TICK_MS)
        for life in stuck:
            self.rules.violation("does-not-end", f"{life.name} was asked to end, and has not after {MOST_CLOSE_S} s")

    def _check_growth(self) -> None:
        """L11: without faults, new partitions are soon assigned, also if more come while that is computed; and what a
        process did that is gone for good.
        """
        for _ in range(3):
            self.nemesis.grow_a_topic()
            self.scheduler.run_until(self.scheduler.now_ms + self.draws.randint(1, 900))
        super()._wait_for_peace()
        if self.plan.connects_topics and len(running := [slot for slot in self.programs if slot.is_running]) > 1:
            running[0].wanted = False
            self.kill(running[0], back_in_s=0.0)
            super()._wait_for_peace()

    def _stuck(self) -> list[Life]:
        return [life for life in self._all_lives() if not life.task.done() and not life.dead]

    def _check_quiet(self) -> None:
        """The other worlds check what replicas owe their callers."""

    def _unrest(self, key: GroupKey) -> str:
        return unrest(self)

    def _end_processes(self) -> None:
        super()._end_processes()
        if self.plan.threads:
            self.threads.end()
        for life in self._all_lives():
            life.loop.end()

    def _tick(self) -> None:
        self.rules.check_all_holders()
        for life in self.live():
            idle_s = life.idle_s + TICK_MS / 1000 if leads_without_body(life) else 0.0
            if life.idle_s < MOST_IDLE_S <= idle_s:
                self.rules.violation("idle-term", f"{life.name} has led for {idle_s} s without a body that runs")
            life.idle_s = idle_s
        self.scheduler.after(TICK_MS, None, self._tick)

    # --- programs -----------------------------------------------------------------------------

    def live(self) -> list[Life]:
        """The processes that run and were not asked to end."""
        return [slot.life for slot in self.programs if slot.life is not None and slot.life.is_live]

    def _all_lives(self) -> Iterator[Life]:
        for slot in self.programs:
            yield from slot.lives

    def add_slot(self) -> None:
        number = len(self.programs)
        if number >= MOST_PROGRAMS:
            return
        instance_id = f"i{number}" if self.draws.random() < self.plan.static else None
        stage = max((slot.stage for slot in self.programs if slot.wanted), default=0)
        self.programs.append(Slot(number, self._kind(), instance_id, stage))
        self._start(self.programs[-1])

    def _kind(self) -> type[Life]:
        in_threads = self.draws.random() < self.plan.threads
        if self.plan.kind == CONSUMERS:
            if self.draws.random() < self.plan.pools:
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
        life = slot.life = slot.kind(self, f"{slot.name}.{len(slot.lives)}", slot.instance_id, slot.stage)
        slot.lives.append(life)
        life.task.add_done_callback(lambda _: self._ended(slot, life))

    def _ended(self, slot: Slot, life: Life) -> None:
        if slot.life is life:
            self._start_later(slot, 0.05 if self.is_calm else slot.back_in_s)

    def _start_later(self, slot: Slot, seconds: float) -> None:
        self.scheduler.after(int(1000 * seconds), None, self._start, slot)

    def kill(self, slot: Slot, *, back_in_s: float) -> None:
        """End a process without a word; its successor comes later."""
        life, slot.life = slot.life, None
        if life is not None and not life.task.done():
            life.kill()
        self._start_later(slot, back_in_s)

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

    def has_twin(self, life: Life) -> bool:
        """Whether its place had another process, of which a join that comes late would fence this one."""
        return any(life in slot.lives and len(slot.lives) > 1 for slot in self.programs)

    # --- what there is to share ---------------------------------------------------------------

    def register(self, topic: str, partitions: int) -> None:
        """Register a topic before the first of the replicas serves: ask until it is there."""

        def retry(reply: Reply | None) -> None:
            if reply is None or reply.error is not ErrorCode.NONE:
                self.scheduler.after(RETRY_MS, None, self.register, topic, partitions)

        self.nemesis.ask(PutTopic(self.groups[0][0], topic, partitions), retry)

    def next_offset(self, place: TopicPartition) -> int:
        """The next offset of a partition: no program asks for a lower one after a higher one."""
        self._offsets[place] = self._offsets.get(place, 0) + 1
        return self._offsets[place]

    def group(self) -> Group | None:
        """The programs' group at the replica that owns it."""
        owned = self.owner(shard_of(*self.groups[0], self.profile.shards))
        return owned.shard.groups.get(self.groups[0]) if owned is not None else None

    def quarantined(self) -> tuple[str, ...]:
        """The units that assignments of the group leave out."""
        group = self.group()
        return () if group is None else group.quarantine.names

    def topics_now(self) -> dict[str, TopicFacts]:
        """The registered topics."""
        folded = self.store.folded[shard_of(self.groups[0][0], "", self.profile.shards)]
        rows = sorted(folded.topics.values(), key=lambda row: row.topic)
        return {row.topic: TopicFacts(row.partitions, dict(row.attributes)) for row in rows if row.partitions}

    def topic_facts(self) -> Mapping[str, TopicFacts]:
        """What the group's strategy should go by."""
        if self.plan.counts == "mapping":
            return {topic: TopicFacts(partitions) for topic, partitions in self.plan.topics.items()}
        return self.topics_now()

    def partition_counts(self) -> dict[str, int]:
        return {topic: facts.partitions for topic, facts in self.topic_facts().items()}

    def work_now(self) -> Collection[WorkItem]:
        """The connectors and tasks that there are."""
        if not self.plan.connects_topics:
            return self.work_items
        topics = {name: facts for name, facts in self.topics_now().items() if name in self.plan.topics}
        return [WorkItem(name, task) for name, facts in topics.items() for task in range(-1, facts.partitions)]

    def draw_work(self) -> frozenset[WorkItem]:
        connectors = [f"c{number}" for number in range(self.draws.randint(1, 3))]
        tasks = [WorkItem(name, task) for name in connectors for task in range(-1, self.draws.randint(0, 3))]
        return frozenset(tasks)


def run_program_seed(seed: int, profile: Profile | None = None, without: Without = NOTHING) -> tuple[World, list[str]]:
    """Play one world of programs, and check it."""
    world = ProgramWorld(seed, profile, without)
    return world, check(world.run(), world.profile, by_programs=True)
