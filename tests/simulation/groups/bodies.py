"""Programs with a body as their work: `WorkerPool` and `Election`."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import Any

from rota.client import Election, LeadershipLost, Shard, Term, WorkerPool
from rota.core.assignors import TopicPartition
from tests.simulation.groups.life import Life
from tests.simulation.groups.rules import Place
from tests.simulation.groups.sharing import ConsumerLife
from tests.simulation.groups.transport import SimulatedTransport
from tests.simulation.nemesis import FOR_EVER_MS

LEADERSHIP = "leadership"


class PoolLife(ConsumerLife):
    """A pool of workers, one body for each shard."""

    pool: WorkerPool | None = None

    @property
    def member(self) -> Any:
        return None if self.pool is None else self.pool.consumer

    def is_valid(self) -> bool:
        return self.pool is not None and Life.is_valid(self)

    def is_active(self, place: Place) -> bool:
        return self.pool is not None and place in self.pool._shards and self.pool._shards[place].role == "active"

    def problems_at_end(self) -> list[str]:
        """None that can be seen here: a body does not learn whether its shard was lost or revoked."""
        return []

    async def use(self) -> None:
        drain_ms = self.rng.choice((0, 0, 300))
        if self.world.plan.has("hangs"):
            drain_ms *= 5
        self.pool = pool = self.client.worker_pool(
            self.group_id, work=self._body, drain_timeout=drain_ms / 1000, **self.options()
        )
        self.consumer = pool.consumer
        async with pool:
            self.entered = True
            if self.world.plan.has("run") and self.rng.random() < 0.5:
                await self._run_until_stopped(pool)
            else:
                await self.until_stopped()

    async def _run_until_stopped(self, pool: WorkerPool) -> None:
        retries = self.world.plan.has("retry")
        running = asyncio.create_task(pool.run(retry=retries))
        stopped = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            self.is_closing = True
            running.cancel()
            stopped.cancel()
            await asyncio.wait((running,))

    async def _body(self, shard: Shard) -> None:
        place = TopicPartition(shard.topic, shard.partition)
        self.world.rules.begins(self, place)
        how = "raised"
        try:
            await self._work_on(shard, place)
            how = "returned"
        except asyncio.CancelledError:
            how = "was cancelled"
            if self.may("stubborn", 0.5):
                await asyncio.sleep(0.3 * self.rng.random())
            raise
        finally:
            self.world.rules.ends(self, place, how)

    async def _work_on(self, shard: Shard, place: TopicPartition) -> None:
        """Commit as it goes. An error of a commit is the SDK's to judge, as in the shortest of programs."""
        if self.may("texts", 0.1):
            await shard.position()
        pause_s = 0.05 if self.may("soon", 0.3) else 0.4
        looks = self.looks_at_stopping(place)
        while True:
            await asyncio.sleep(pause_s * (0.5 + 1.5 * self.rng.random()))
            offset = self.world.next_offset(place)
            if self.rng.random() < 0.7:
                await self.perhaps_in_a_task_group(partial(self.checked, place, offset, partial(shard.commit, offset)))
            else:
                shard.store(offset)
            if self.may("returns", 0.1):
                return
            if self.may("raise", 0.03):
                raise self.planned_error()
            if looks and shard.stopping.is_set() and self.rng.random() < 0.5:
                return


class CandidateLife(Life):
    """A candidate in an election."""

    election: Election | None = None
    priority = 0
    drain_ms = 0

    @property
    def member(self) -> Any:
        return None if self.election is None else self.election.member

    def is_valid(self) -> bool:
        return self.election is not None and self.election.is_leader

    async def use(self) -> None:
        self.election = election = self._candidacy()
        async with election:
            self.entered = True
            while not self.stopping.is_set():
                await self._run_until_stopped(election)
                if not self.stopping.is_set() and self.may("returns", 0.5):
                    await asyncio.sleep(2.0)
            self.is_closing = True

    def _candidacy(self) -> Election:
        return self.client.leader(self.group_id, **self.candidate_options())

    def candidate_options(self) -> dict[str, Any]:
        """The arguments of `client.leader`. A candidate without a priority has metadata that only programs can read."""
        plan = self.world.plan
        options: dict[str, Any] = {
            "session_timeout": plan.session_ms / 1000,
            "rebalance_timeout": plan.rebalance_ms / 1000,
            "group_instance_id": self.instance_id,
        }
        if not plan.priorities:
            return {**options, "metadata": b"here"}
        drawn = Random(f"priority {self.world.seed} {self.name}")
        self.priority, self.drain_ms = drawn.choice(plan.priorities), drawn.choice((0, 0, 500))
        return {**options, "priority": self.priority, "preempt_after": drawn.choice((0, 0.3, 1))}

    async def _run_until_stopped(self, election: Election) -> None:
        running = asyncio.create_task(election.run(self._body, drain_timeout=self.drain_ms / 1000))
        stopped = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            if self.rng.random() < 0.5 and self.stopping.is_set():
                # A program may leave the block and let that end the term.
                self.errand("ends its run", lambda: asyncio.wait((running,)))
            else:
                running.cancel()
            stopped.cancel()

    def place(self, _term: Term) -> Place:
        """What a body works on."""
        return LEADERSHIP

    def write(self) -> None:
        """What the body does to a resource."""

    async def _body(self, term: Term) -> None:
        place = self.place(term)
        self.world.rules.begins(self, place)
        how = "raised"
        try:
            await self._lead(term)
            how = "returned"
            self.steps_aside = True  # A run that has ended resigns.
        except asyncio.CancelledError:
            how = "was cancelled"
            if self.may("stubborn", 0.5):
                await asyncio.sleep(0.3 * self.rng.random())
            raise
        finally:
            self.steps_aside = self.steps_aside or how == "raised"
            self.world.rules.ends(self, place, how)

    async def _lead(self, term: Term) -> None:
        if self.may("nested", 0.7):
            await self._lead_with_another()
        looks = self.looks_at_stopping(LEADERSHIP)
        while True:
            await asyncio.sleep(0.3 + self.rng.random())
            self.write()
            assert self.election is not None
            if self.may("task groups", 0.5):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(asyncio.sleep(0.1))
                    term.raise_if_lost()
            if looks and term.stopping.is_set() and self.rng.random() < 0.5:
                return
            if self.may("returns", 0.2):
                return
            if self.may("raise", 0.1):
                raise self.planned_error()
            if self.may("resign", 0.15):
                self.steps_aside = True
                await self.election.resign(self.text("enough"), pause=self.rng.random())
            if self.may("rejoin", 0.15):
                self.election.member.rejoin(self.text("once more"))

    async def _lead_with_another(self) -> None:
        """Work that needs a second leadership, of a group of its own. That it is lost is an error of this work."""
        transport = SimulatedTransport(self)
        client = self.connect(transport)
        try:
            async with client.leader(f"inner-{self.name}", session_timeout=1.0) as inner:
                async for term in inner.terms():
                    async with term:
                        await asyncio.sleep(2 * self.rng.random())
                        if self.may("nested", 0.7):
                            transport.refuse(FOR_EVER_MS)
                            await asyncio.sleep(3)
                        return
        except LeadershipLost:
            self.raised = True
            raise

    def _may_end_with(self, error: BaseException) -> bool:
        return super()._may_end_with(error) or (isinstance(error, LeadershipLost) and self.raised)

    async def resign(self) -> None:
        """Another task of the program resigns."""
        assert self.election is not None
        self.steps_aside = True
        await self.election.resign(self.text("asked to"), pause=0.5 * self.rng.random())
