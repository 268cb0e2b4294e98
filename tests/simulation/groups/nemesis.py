"""What happens to a world while it is troubled: the acts, drawn by the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from rota.client import Client
from rota.core.assignors.work import WorkItem
from rota.protocol.messages import DeleteTopic, FreezeGroup, PutTopic, QuarantineGroup, RebalanceGroup
from rota.testing.virtual_time import pause
from tests.simulation.groups.bodies import CandidateLife
from tests.simulation.groups.coordinator import NAMESPACE
from tests.simulation.groups.life import Life
from tests.simulation.groups.link import Link
from tests.simulation.groups.plan import CONNECT, CONSUMERS, ELECTION, PERMITS
from tests.simulation.groups.sharing import ConsumerLife, SharingLife

if TYPE_CHECKING:
    from tests.simulation.groups.world import Slot, World

Act: TypeAlias = Callable[[], Awaitable[None] | None]


class Mischief:
    """Does one act after the other until the time of the plan is over."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self._acts = list(self._drawn_acts())
        self.done = 0
        """Faults so far."""

    async def run(self) -> None:
        world, plan = self._world, self._world.plan
        end = world.loop.time() + plan.mischief_s
        while world.loop.time() < end:
            await asyncio.sleep(min(self._rng.expovariate(1 / plan.pace_s), 4 * plan.pace_s))
            if self._acts:
                act = self._rng.choice(self._acts)
                world.trace.note("mischief", act.__name__.strip("_"))
                self.done += 1
                if (pending := act()) is not None:
                    await pending

    def _drawn_acts(self) -> Iterator[Act]:
        plan = self._world.plan
        by_feature: dict[str, list[Act]] = {
            "cuts": [self._cut, self._cut],
            "kills": [self._kill],
            "restarts": [self._restart, self._restart, self._resize],
            "reload": [self._reload],
            "stall": [self._stall],
            "rejoin": [self._rejoin],
            "hangs": [self._hang],
            "waits": [self._cancel_a_wait] if plan.permits else [],
            **self._acts_of_kind(),
        }
        if plan.freezes:
            yield from (self._freeze, self._freeze)
        if plan.quarantines:
            yield from (self._set_quarantine, self._set_quarantine, self._release, self._kill)
        for feature, acts in by_feature.items():
            if plan.has(feature):
                yield from acts
        if plan.kind in (CONSUMERS, CONNECT) and len(plan.stages) > 1:
            yield from (self._upgrade, self._upgrade, self._upgrade)

    def _acts_of_kind(self) -> dict[str, list[Act]]:
        kind, plan = self._world.plan.kind, self._world.plan
        if kind in (ELECTION, PERMITS):
            asked = [self._step_down] if plan.priorities else []
            return {"resign": [self._resign, self._resign, *asked]}
        acts: dict[str, list[Act]] = {"aside": [self._step_aside, self._withdraw]}
        if kind == CONNECT:
            acts |= {"topics": [self._other_work], "undone": [self._work_and_back]}
        if kind == CONSUMERS and plan.counts != "mapping":
            acts |= {"topics": [self._grow, self._put, self._delete, self._weigh]}
            acts |= {"undone": [self._put_and_delete, self._weigh_and_back, self._delete_and_put]}
        if kind == CONSUMERS and plan.counts != "pattern":
            acts |= {"subscribe": [self._subscribe]}
        return acts

    # --- processes ----------------------------------------------------------------------------

    def _some_life(self) -> Life | None:
        lives = self._world.live()
        return self._rng.choice(lives) if lives else None

    def _some_slot(self) -> Slot:
        return self._rng.choice(self._world.slots)

    def _cut(self) -> None:
        life = self._some_life()
        if life is None:
            return
        session_s = self._world.plan.session_ms / 1000
        seconds = self._rng.choice((0.2, 0.5 * session_s, session_s, 2 * session_s, 3 * session_s))
        life.link.cut(silent=self._rng.random() < 0.5)
        self._world.later(seconds, life.reconnect)

    def _hang(self) -> None:
        """The coordinator answers no program for a while."""
        seconds = self._rng.choice((0.5, 1.0, 2.0)) * self._world.plan.session_ms / 1000
        for life in self._world.live():
            life.link.cut(silent=True)
            self._world.later(seconds, life.reconnect)

    async def _cancel_a_wait(self) -> None:
        """A program gives up its wait for a permit. Its ghost would be in the group, and the group not at rest."""
        world, plan = self._world, self._world.plan
        link = Link(world.coordinator, world.loop, self._rng, world.trace, f"waiter {self.done}")
        client = Client(link, NAMESPACE, client_id=f"waiter {self.done}")
        waiting = asyncio.create_task(
            client.permits(Life.group_id, max(plan.permits), session_timeout=plan.session_ms / 1000).start()
        )
        await asyncio.wait((waiting,), timeout=self._rng.random())
        waiting.cancel()
        await asyncio.wait((waiting,))
        await client.close()

    def _kill(self) -> None:
        self._world.kill(self._some_slot(), back_in_s=self._rng.choice((0.05, 0.5, 2.0)))

    def _restart(self) -> None:
        self._world.restart(self._some_slot(), back_in_s=self._rng.choice((0.0, 0.05, 0.5)))

    def _resize(self) -> None:
        world = self._world
        if self._rng.random() < 0.5:
            world.add_slot()
        elif sum(slot.wanted for slot in world.slots) > 1:
            world.retire(self._some_slot())

    def _upgrade(self) -> None:
        """The next step of a rolling restart with other strategies: the slot that is furthest behind."""
        wanted = [slot for slot in self._world.slots if slot.wanted]
        slot = min(wanted, key=lambda each: (each.stage, each.number))
        if slot.stage + 1 < len(self._world.plan.stages):
            slot.stage += 1
            self._world.restart(slot, back_in_s=0.1)

    def _reload(self) -> None:
        self._world.coordinator.reload()

    def _stall(self) -> None:
        pause(self._rng.choice((0.3, 1.0, 4.0)))
        self._world.stalled_until = self._world.loop.time()

    # --- programs -----------------------------------------------------------------------------

    def _rejoin(self) -> None:
        life = self._some_life()
        if life is not None and life.entered:
            life.member.rejoin(life.text("an operator asked for it"))

    def _step_aside(self) -> None:
        life = self._some_life()
        if isinstance(life, SharingLife) and life.entered:
            life.errand("steps aside", life.step_aside)

    def _withdraw(self) -> None:
        life = self._some_life()
        if isinstance(life, SharingLife) and life.entered:
            life.withdraw()

    def _resign(self) -> None:
        life = self._some_life()
        if isinstance(life, CandidateLife) and life.entered:
            life.errand("resigns", life.resign)

    def _step_down(self) -> None:
        """An operator asks the leader to step down."""
        self._world.coordinator.ask(RebalanceGroup(NAMESPACE, Life.group_id, step_down=True))

    def _freeze(self) -> None:
        """An operator freezes the group, for less than the time in which it comes to rest, or ends that."""
        for_ms = self._rng.choice((0, 300, 1_000, 2_500))
        self._world.coordinator.ask(FreezeGroup(NAMESPACE, Life.group_id, for_ms, "for the test"))

    def _set_quarantine(self) -> None:
        """An operator sets the rule."""
        falls, units = self._rng.choice((1, 1, 2)), self._rng.choice((1, 3))
        release_after_ms = self._rng.choice((0, 900))
        self._world.coordinator.ask(QuarantineGroup(NAMESPACE, Life.group_id, falls, units, release_after_ms))

    def _release(self) -> None:
        """An operator releases all units."""
        if units := self._world.quarantined():
            self._world.coordinator.ask(QuarantineGroup(NAMESPACE, Life.group_id, release=units))

    def _subscribe(self) -> None:
        life = self._some_life()
        if isinstance(life, ConsumerLife) and life.entered:
            life.errand("subscribes", life.subscribe)

    # --- topics -------------------------------------------------------------------------------

    def _put_topic(self, name: str, partitions: int, weights: str = "") -> None:
        attributes = {"weights": weights} if weights else {}
        self._world.trace.note("topics", "put", (name, partitions, weights))
        self._world.coordinator.ask(PutTopic(NAMESPACE, name, partitions, attributes))

    def _delete_topic(self, name: str) -> None:
        self._world.trace.note("topics", "delete", name)
        self._world.coordinator.ask(DeleteTopic(NAMESPACE, name))

    def _some_topic(self) -> tuple[str, int]:
        topics = self._world.coordinator.topics()
        name = self._rng.choice(sorted(topics)) if topics else "t0"
        return name, topics[name].partitions if topics else 1

    async def _moment(self) -> None:
        await asyncio.sleep(self._rng.choice((0.0, 0.02, 0.06, 0.1, 0.3, 0.45, 0.6)) * self._rng.random())

    def _grow(self) -> None:
        name, partitions = self._some_topic()
        if partitions < 12:
            self._put_topic(name, partitions + self._rng.randint(1, 3))

    def _put(self) -> None:
        name = f"t{self._rng.randint(0, 3)}"
        known = self._world.coordinator.topics().get(name)
        if known is None:
            self._put_topic(name, self._rng.randint(1, 6))

    def _delete(self) -> None:
        if len(self._world.coordinator.topics()) > 1:
            self._delete_topic(self._some_topic()[0])

    def _weigh(self) -> None:
        name, partitions = self._some_topic()
        self._put_topic(name, partitions, self._rng.choice(("", "50,1", "1,1,9")))

    async def _put_and_delete(self) -> None:
        self._put_topic("t7", 3)
        await self._moment()
        self._delete_topic("t7")

    async def _delete_and_put(self) -> None:
        name, partitions = self._some_topic()
        self._delete_topic(name)
        await self._moment()
        self._put_topic(name, partitions)

    async def _weigh_and_back(self) -> None:
        name, partitions = self._some_topic()
        self._put_topic(name, partitions, "50,1")
        await self._moment()
        self._put_topic(name, partitions)

    # --- connectors ---------------------------------------------------------------------------

    def _other_work(self) -> None:
        self._world.work_items = self._world.draw_work()

    async def _work_and_back(self) -> None:
        before = self._world.work_items
        self._world.work_items = before | {WorkItem("c9", -1)}
        await self._moment()
        self._world.work_items = before
