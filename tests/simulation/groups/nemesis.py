"""The faults of programs: what happens to their processes, what operators ask for, and what becomes of topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from rota.core.assignors.work import WorkItem
from rota.protocol.messages import DeleteTopic, PutTopic, QuarantineGroup, RebalanceGroup
from tests.simulation.groups.bodies import CandidateLife
from tests.simulation.groups.life import Life
from tests.simulation.groups.plan import CONNECT, CONSUMERS, ELECTION, PERMITS
from tests.simulation.groups.sharing import ConsumerLife, SharingLife
from tests.simulation.groups.transport import SimulatedTransport
from tests.simulation.nemesis import Nemesis

if TYPE_CHECKING:
    from tests.simulation.groups.world import ProgramWorld, Slot

Act: TypeAlias = Callable[[], None]


class ProgramNemesis(Nemesis):
    """Does one act after the other, by the pace of the plan, beside the faults of replicas."""

    world: ProgramWorld

    def __init__(self, world: ProgramWorld) -> None:
        super().__init__(world)
        self._draws = world.draws
        self._acts = list(self._drawn_acts())

    def start(self) -> None:
        super().start()
        if self._acts:
            self._again(int(1000 * self.world.plan.pace_s), self._act_on_programs)

    def _act_on_programs(self) -> None:
        act = self._draws.choice(self._acts)
        if self.may(act.__name__.strip("_")):
            act()

    def _drawn_acts(self) -> Iterator[Act]:
        plan = self.world.plan
        by_feature: dict[str, list[Act]] = {
            "cuts": [self._cut_program, self._cut_program],
            "kills": [self._kill],
            "restarts": [self._restart_program, self._restart_program, self._resize],
            "stall": [self._stall],
            "rejoin": [self._rejoin],
            "hangs": [self._hang],
            "waits": [self._cancel_a_wait] if plan.permits else [],
            **self._acts_of_kind(),
        }
        if plan.quarantines:
            yield from (self._set_quarantine, self._set_quarantine, self._release, self._kill)
        for feature, acts in by_feature.items():
            if plan.has(feature):
                yield from acts
        if plan.kind in (CONSUMERS, CONNECT) and len(plan.stages) > 1:
            yield from (self._upgrade, self._upgrade, self._upgrade)

    def _acts_of_kind(self) -> dict[str, list[Act]]:
        kind, plan = self.world.plan.kind, self.world.plan
        if kind in (ELECTION, PERMITS):
            asked = [self._step_down] if plan.priorities else []
            return {"resign": [self._resign, self._resign, *asked]}
        acts: dict[str, list[Act]] = {"aside": [self._step_aside, self._withdraw]}
        if kind == CONNECT and not plan.connects_topics:
            acts |= {"topics": [self._other_work], "undone": [self._work_and_back]}
        if plan.follows_topics:
            acts |= {"topics": [self.grow_a_topic, self._put, self._delete, self._weigh]}
            acts |= {"undone": [self._put_and_delete, self._weigh_and_back, self._delete_and_put]}
        if kind == CONSUMERS and plan.counts != "pattern":
            acts |= {"subscribe": [self._subscribe]}
        return acts

    # --- processes ----------------------------------------------------------------------------

    def _some_life(self) -> Life | None:
        lives = self.world.live()
        return self._draws.choice(lives) if lives else None

    def _some_slot(self) -> Slot:
        return self._draws.choice(self.world.programs)

    def _cut_program(self) -> None:
        if (life := self._some_life()) is not None:
            session_ms = self.world.plan.session_ms
            for_ms = int(self._draws.choice((200, 0.5 * session_ms, session_ms, 2 * session_ms, 3 * session_ms)))
            if self._draws.random() < 0.5:
                life.cut(for_ms)
            else:
                life.transport.refuse(for_ms)

    def _hang(self) -> None:
        """The coordinator answers no program for a while."""
        for_ms = int(self._draws.choice((0.5, 1.0, 2.0)) * self.world.plan.session_ms)
        for life in self.world.live():
            life.cut(for_ms)

    def _cancel_a_wait(self) -> None:
        """A program gives up its wait for a permit. Its ghost would be in the group, and the group not at rest."""
        life, most = self._some_life(), max(self.world.plan.permits)

        async def give_up() -> None:
            assert life is not None
            client = life.connect(SimulatedTransport(life))
            session_s = self.world.plan.session_ms / 1000
            waiting = asyncio.create_task(client.permits(life.group_id, most, session_timeout=session_s).start())
            try:
                await asyncio.wait((waiting,), timeout=self._draws.random())
            finally:
                waiting.cancel()
                await asyncio.wait((waiting,))
                await client.close()

        if life is not None:
            life.errand("gives up a wait", give_up)

    def _kill(self) -> None:
        self.world.kill(self._some_slot(), back_in_s=self._draws.choice((0.05, 0.5, 2.0)))

    def _restart_program(self) -> None:
        self.world.restart(self._some_slot(), back_in_s=self._draws.choice((0.0, 0.05, 0.5)))

    def _resize(self) -> None:
        world = self.world
        if self._draws.random() < 0.5:
            world.add_slot()
        elif sum(slot.wanted for slot in world.programs) > 1:
            world.retire(self._some_slot())

    def _upgrade(self) -> None:
        """The next step of a rolling restart with other strategies: the slot that is furthest behind."""
        wanted = [slot for slot in self.world.programs if slot.wanted]
        slot = min(wanted, key=lambda each: (each.stage, each.number))
        if slot.stage + 1 < len(self.world.plan.stages):
            slot.stage += 1
            self.world.restart(slot, back_in_s=0.1)

    def _stall(self) -> None:
        """A process stands still, or all of them."""
        lives, for_ms = self.world.live(), self._draws.choice((300, 1_000, 4_000))
        for life in lives if self._draws.random() < 0.5 else lives[:1]:
            life.paused_until_ms = self.world.scheduler.now_ms + for_ms

    # --- programs -----------------------------------------------------------------------------

    def _rejoin(self) -> None:
        if (life := self._some_life()) is not None:
            life.do(lambda: life.member.rejoin(life.text("an operator asked for it")))

    def _step_aside(self) -> None:
        if isinstance(life := self._some_life(), SharingLife) and life.entered:
            life.errand("steps aside", life.step_aside)

    def _withdraw(self) -> None:
        if isinstance(life := self._some_life(), SharingLife):
            life.do(life.withdraw)

    def _resign(self) -> None:
        if isinstance(life := self._some_life(), CandidateLife) and life.entered:
            life.errand("resigns", life.resign)

    def _subscribe(self) -> None:
        if isinstance(life := self._some_life(), ConsumerLife) and life.entered:
            life.errand("subscribes", life.subscribe)

    # --- operators ----------------------------------------------------------------------------

    def _step_down(self) -> None:
        self.ask(RebalanceGroup(*self.world.groups[0], step_down=True))

    def _set_quarantine(self) -> None:
        falls, units = self._draws.choice((1, 1, 2)), self._draws.choice((1, 3))
        release_after_ms = self._draws.choice((0, 900))
        self.ask(QuarantineGroup(*self.world.groups[0], falls, units, release_after_ms))

    def _release(self) -> None:
        if units := self.world.quarantined():
            self.ask(QuarantineGroup(*self.world.groups[0], release=units))

    # --- topics -------------------------------------------------------------------------------

    def _put_topic(self, name: str, partitions: int, weights: str = "") -> None:
        attributes = {"weights": weights} if weights else {}
        self.ask(PutTopic(self.world.groups[0][0], name, partitions, attributes))

    def _delete_topic(self, name: str) -> None:
        self.ask(DeleteTopic(self.world.groups[0][0], name))

    def _some_topic(self) -> tuple[str, int]:
        topics = self.world.topics_now()
        name = self._draws.choice(sorted(topics)) if topics else "t0"
        return name, topics[name].partitions if topics else 1

    def _soon(self, act: Act) -> None:
        delay_s = self._draws.choice((0.0, 0.02, 0.06, 0.1, 0.3, 0.45, 0.6)) * self._draws.random()
        self.world.scheduler.after(int(1000 * delay_s), None, act)

    def grow_a_topic(self) -> None:
        name, partitions = self._some_topic()
        if partitions < 12:
            self._put_topic(name, partitions + self._draws.randint(1, 3))

    def _put(self) -> None:
        name = f"t{self._draws.randint(0, 3)}"
        if name not in self.world.topics_now():
            self._put_topic(name, self._draws.randint(1, 6))

    def _delete(self) -> None:
        if len(self.world.topics_now()) > 1:
            self._delete_topic(self._some_topic()[0])

    def _weigh(self) -> None:
        name, partitions = self._some_topic()
        self._put_topic(name, partitions, self._draws.choice(("", "50,1", "1,1,9")))

    def _put_and_delete(self) -> None:
        self._put_topic("t7", 3)
        self._soon(lambda: self._delete_topic("t7"))

    def _delete_and_put(self) -> None:
        name, partitions = self._some_topic()
        self._delete_topic(name)
        self._soon(lambda: self._put_topic(name, partitions))

    def _weigh_and_back(self) -> None:
        name, partitions = self._some_topic()
        self._put_topic(name, partitions, "50,1")
        self._soon(lambda: self._put_topic(name, partitions))

    # --- connectors ---------------------------------------------------------------------------

    def _other_work(self) -> None:
        self.world.work_items = self.world.draw_work()

    def _work_and_back(self) -> None:
        before = self.world.work_items
        self.world.work_items = before | {WorkItem("c9", -1)}

        def back() -> None:
            self.world.work_items = before

        self._soon(back)
