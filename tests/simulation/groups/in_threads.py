"""The same programs through the sync twin: their callbacks and bodies are plain functions in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from rota.client import twin
from rota.client.errors import CoordinatorError, LeadershipLost
from rota.core.assignors import TopicPartition
from rota.core.types import TopicFacts
from rota.protocol.messages import OffsetToCommit
from tests.simulation.groups.bodies import LEADERSHIP, CandidateLife, PoolLife
from tests.simulation.groups.life import Life
from tests.simulation.groups.sharing import ConsumerLife


class _LoopOfTheProcess(twin._Thread):
    """The twin's own thread is the one that runs the process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop

    def start(self) -> None:
        """It runs."""

    def stop(self) -> None:
        """It goes on for the rest of the program."""


class InThreads(Life):
    """What programs of the sync twin have in common."""

    def set_up(self) -> Any:
        """The client's twin."""
        self.thread = _LoopOfTheProcess(self.loop)
        return twin.Client(self.client, self.thread)

    def in_thread(self, function: Callable[[], Any]) -> Future[Any]:
        """Run a function in a thread of this process."""
        return self.world.threads.submit(self.loop, function)

    async def use(self) -> None:
        threads = self.world.threads
        self.loop.run_threads = lambda: threads.run_ready(self.loop)
        await asyncio.wrap_future(self.in_thread(self.program))

    def program(self) -> None:
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        """As `time.sleep`, by the world's clock."""
        self.thread.run(asyncio.sleep(seconds))

    @property
    def goes_on(self) -> bool:
        """A thread is not interrupted where its member has ended: a program that has a loop looks."""
        return not self.stopping.is_set() and not self.member.is_over

    def sleep_until_stopped(self) -> None:
        while self.goes_on:
            self.sleep(0.3)
        self.is_closing = True


class ConsumerInThreads(InThreads, ConsumerLife):
    """A consumer with a loop that commits."""

    def program(self) -> None:
        client = self.set_up()
        options = self.options()
        if options["partitions_per_topic"] is not None:
            options["partitions_per_topic"] = self._facts_now
        consumer = client.consumer(
            self.group_id, **options, on_assigned=self.notified, on_revoked=self.revoked, on_lost=self.lost
        )
        self.twin, self.consumer = consumer, consumer._original
        with consumer:
            self.entered = True
            while self.goes_on:
                self.sleep(0.1 + 0.4 * self.rng.random())
                consumer.progress()
                held = consumer.assignment or ()
                if held and self.rng.random() < 0.5:
                    self._commit(consumer, self.rng.choice(held))
                if self.may("raise", 0.02):
                    self.asked_to_end_at = self.world.now_s
                    self.body_error = self.planned_error()
                    raise self.body_error
            self.is_closing = True

    def _facts_now(self, topics: Sequence[str]) -> Mapping[str, TopicFacts]:
        known = self.world.topics_now()
        return {topic: known[topic] for topic in topics if topic in known}

    def _commit(self, consumer: Any, place: TopicPartition) -> None:
        item = OffsetToCommit(place.topic, place.partition, self.world.next_offset(place))
        try:
            if self.rng.random() < 0.5:
                consumer.commit([item])
            else:
                consumer.store(place.topic, place.partition, item.offset)
        except CoordinatorError as error:
            self.world.note(self.name, "commit failed", repr(error)[:200])

    def notified(self, added: Any, held: Any) -> None:
        self.world.rules.assigned(self, added, held)
        if self.may("slow", 0.3):
            self.sleep(0.4 * self.rng.random())
        self._odd("on_assigned")

    def revoked(self, removed: Any) -> None:
        self.world.note(self.name, "on_revoked begins", tuple(removed))
        if self.may("slow", 0.3):
            self.sleep(0.4 * self.rng.random())
        try:
            self._odd("on_revoked")
        except Exception:
            self.excused.update(removed)
            raise
        # A thread is not interrupted where the share is lost meanwhile: on_lost was called, or soon will be.
        still = [place for place in removed if place in self.held]
        self.world.rules.ended(self, "on_revoked", still)
        if self.consumer is not None and self.consumer._holding.current is None:
            self.lost_meanwhile.update(still)

    def lost(self, removed: Any) -> None:
        self.world.rules.ended(self, "on_lost", removed)

    def _odd(self, name: str) -> None:
        if self.may("raise", 0.06):
            raise self.planned_error()
        if self.may("rejoin", 0.1):
            self.twin.rejoin(self.text(f"asked for by {name}"))


class PoolInThreads(InThreads, PoolLife):
    """A pool with a loop in a thread as its work."""

    def program(self) -> None:
        client = self.set_up()
        options = self.options()
        if options["partitions_per_topic"] is not None:
            options["partitions_per_topic"] = ConsumerInThreads._facts_now.__get__(self)
        pool = client.worker_pool(self.group_id, work=self.body, drain_timeout=0.3, **options)
        self.pool = pool._original
        self.consumer = self.pool.consumer if self.pool is not None else None
        with pool:
            self.entered = True
            self.sleep_until_stopped()

    def body(self, shard: Any) -> None:
        place = TopicPartition(shard.topic, shard.partition)
        self.world.rules.begins(self, place)
        how = "raised"
        try:
            self._loop(shard, place)
            how = "returned"
        finally:
            self.world.rules.ends(self, place, how)

    def _loop(self, shard: Any, place: TopicPartition) -> None:
        while not shard.stopping.is_set() and shard.is_held:
            self.sleep(0.2 + 0.4 * self.rng.random())
            if shard.is_held and self.rng.random() < 0.5:
                shard.commit(self.world.next_offset(place))
            if self.may("raise", 0.03):
                raise self.planned_error()


class CandidateInThreads(InThreads, CandidateLife):
    """A candidate with a loop in a thread as its work."""

    def program(self) -> None:
        client = self.set_up()
        candidate = client.leader(self.group_id, **self.candidate_options())
        self.election = candidate._original
        with candidate:
            self.entered = True
            while not self.stopping.is_set():
                running = self.in_thread(lambda: candidate.run(self._work))
                while not self.stopping.is_set() and not running.done():
                    self.sleep(0.3)
                if running.done():
                    running.result()
            self.is_closing = True

    def _work(self, term: Any) -> None:
        self.world.rules.begins(self, LEADERSHIP)
        how = "raised"
        try:
            while term.is_valid:
                self.sleep(0.2 + 0.3 * self.rng.random())
                if self.may("returns", 0.05):
                    break
                if self.may("raise", 0.05):
                    raise self.planned_error()
            how = "returned"
        finally:
            self.steps_aside = True  # A run that has ended resigns.
            self.world.rules.ends(self, LEADERSHIP, how)

    def _may_end_with(self, error: BaseException) -> bool:
        return super()._may_end_with(error) or isinstance(error, LeadershipLost)
