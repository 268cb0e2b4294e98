"""Programs that share partitions or other work by callbacks: `Consumer`, `ConnectWorker`, `Member`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from rota.client import ConnectWorker, Consumer, Generation, Member
from rota.client.errors import CoordinatorError
from rota.core.assignors import TopicPartition
from rota.core.assignors.work import WorkItem
from rota.core.types import TopicFacts
from rota.protocol.messages import OffsetToCommit
from tests.simulation.groups.life import Life
from tests.simulation.groups.rules import Place
from tests.simulation.loop import pause


class SharingLife(Life):
    """What the three have in common: callbacks that note their calls, and do odd things."""

    places: Callable[[Any], Collection[Place]] = staticmethod(tuple)
    """The places of a share as the callbacks get it."""

    async def on_assigned(self, added: Any, held: Any) -> None:
        self.world.rules.assigned(self, self.places(added), self.places(held))
        if self.may("slow", 0.3):
            await asyncio.sleep(0.4 * self.rng.random())
        await self._odd_callback("on_assigned")

    async def on_revoked(self, removed: Any) -> None:
        self.world.note(self.name, "on_revoked begins", tuple(self.places(removed)))
        if self.may("slow", 0.4):
            await asyncio.sleep(0.8 * self.rng.random())
        try:
            await self._odd_callback("on_revoked")
        except Exception:
            self.excused.update(self.places(removed))
            raise
        self.world.rules.ended(self, "on_revoked", self.places(removed))

    async def on_lost(self, removed: Any) -> None:
        self.world.rules.ended(self, "on_lost", self.places(removed))
        if self.may("raise", 0.1):
            raise self.planned_error()

    async def _odd_callback(self, name: str) -> None:
        if self.may("raise", 0.06):
            raise self.planned_error()
        if self.may("rejoin", 0.15):
            self.member.rejoin(self.text(f"asked for by {name}"))
        if self.may("aside", 0.1):
            await self.step_aside()

    async def step_aside(self) -> None:
        """Leave the group for a while."""
        self.steps_aside = True
        self.errand("comes back", self._come_back_later)
        await self.member.step_aside(self.text("stepping aside"))

    async def _come_back_later(self) -> None:
        await asyncio.sleep(0.8 * self.rng.random())
        while not self.stopping.is_set():
            self.member.come_back()
            await asyncio.sleep(0.5)

    def withdraw(self) -> None:
        """Leave the group for a while, at once."""
        self.steps_aside = True
        self.member._withdraw("withdrawn")
        self.errand("comes back", self._come_back_later)

    # --- assigning ----------------------------------------------------------------------------

    async def odd_assign(self) -> None:
        """What the leader's own function does sometimes."""
        if self.may("assign", 0.2):
            await asyncio.sleep(1.5 * self.rng.random())
        if self.may("assign", 0.15):
            raise self.planned_assign_error()
        if self.may("stall", 0.05):
            pause(0.2 + 2 * self.rng.random())

    def planned_assign_error(self) -> Exception:
        return RuntimeError(self.text("assigning fails as planned"))


class ConsumerLife(SharingLife):
    """A consumer with a task that commits."""

    consumer: Consumer | None = None
    commits_stored = False
    """Whether the consumer commits what was stored: then that must have happened when its block was left in order."""

    @property
    def member(self) -> Any:
        return self.consumer

    def is_valid(self) -> bool:
        return self.consumer is not None and super().is_valid()

    def is_active(self, place: Any) -> bool:
        return self.consumer is not None and self.consumer._topic_role.is_active(place)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The topics that this program asks for; None for all."""
        return self.subscribed

    async def use(self) -> None:
        self.consumer = consumer = self.make()
        async with consumer:
            working = asyncio.create_task(self._work(consumer))
            try:
                await self.until_stopped()
                if self.world.plan.has("soon") and (held := consumer.assignment):
                    place = self.rng.choice(held)
                    offset = self.world.next_offset(place)
                    self._commit_soon(consumer, OffsetToCommit(place.topic, place.partition, offset))
            finally:
                working.cancel()

    def make(self) -> Consumer:
        return self.client.consumer(
            self.group_id,
            **self.options(),
            on_assigned=self.on_assigned,
            on_revoked=self.on_revoked,
            on_lost=self.on_lost,
        )

    def options(self) -> dict[str, Any]:
        """What a consumer and a pool have in common."""
        plan = self.world.plan
        self.commits_stored = self.rng.random() < 0.4
        self.stored: dict[TopicPartition, int] = {}
        return {
            "topics": self._topics(),
            "strategy": plan.stages[self.stage],
            "session_timeout": plan.session_ms / 1000,
            "rebalance_timeout": plan.rebalance_ms / 1000,
            "group_instance_id": self.instance_id,
            "auto_commit_interval": 0.3 if self.commits_stored else None,
            "max_processing_interval": 1.5 if plan.has("idle") else None,
            "topics_refresh_interval": 1.0,
            "topics_debounce": self.world.seed % 3 / 3,
            "partitions_per_topic": self._facts if plan.counts == "function" else None,
        }

    def _topics(self) -> Any:
        plan = self.world.plan
        self.subscribed: tuple[str, ...] | None = None if plan.counts == "pattern" else tuple(plan.topics)
        if plan.counts == "pattern":
            return re.compile("t.*")
        return dict(plan.topics) if plan.counts == "mapping" else list(plan.topics)

    async def _facts(self, topics: Sequence[str]) -> Mapping[str, TopicFacts]:
        """The user's own function that counts partitions."""
        await self.odd_assign()
        known = self.world.topics_now()
        return {topic: known[topic] for topic in topics if topic in known}

    # --- working ------------------------------------------------------------------------------

    async def _work(self, consumer: Consumer) -> None:
        while True:
            if self.may("idle", 0.08):
                await asyncio.sleep(4 * self.rng.random())
            await asyncio.sleep(0.2 + 0.8 * self.rng.random())
            held = consumer.assignment or ()
            consumer.progress()
            if held:
                try:
                    await self._progress(consumer, self.rng.choice(held))
                except CoordinatorError as error:
                    self.world.note(self.name, "commit failed", repr(error)[:200])

    async def checked(self, place: TopicPartition, offset: int, commit: Callable[[], Awaitable[None]]) -> None:
        """Commit, and check the class of the error."""
        try:
            await commit()
        except CoordinatorError as error:
            self.wire.check_commit_error((self.group_id, *place), offset, error)
            raise

    async def _progress(self, consumer: Consumer, place: TopicPartition) -> None:
        item = OffsetToCommit(place.topic, place.partition, self.world.next_offset(place))
        if self.may("poison", 0.15):
            self._store(consumer, place, -1)
            return
        draw = self.rng.random()
        if draw < 0.4:
            await self.checked(place, item.offset, lambda: consumer.commit([item]))
        elif draw < 0.7 or not self.world.plan.has("soon"):
            self._store(consumer, place, item.offset)
        else:
            self._commit_soon(consumer, item)

    def _store(self, consumer: Consumer, place: TopicPartition, offset: int) -> None:
        try:
            consumer.store(place.topic, place.partition, offset)
        except ValueError as error:
            self.world.note(self.name, "store refused", repr(error)[:200])
        else:
            self.world.note(self.name, "stored", (place, offset))
            if offset >= 0:
                self.stored[place] = offset

    async def on_revoked(self, removed: Any) -> None:
        await super().on_revoked(removed)
        if not self.is_closing:
            self._forget(removed)

    async def on_lost(self, removed: Any) -> None:
        self._forget(removed)
        await super().on_lost(removed)

    def _forget(self, removed: Any) -> None:
        for place in removed:
            self.stored.pop(place, None)

    def problems_at_end(self) -> list[str]:
        """What was stored has been committed when the block was left in order, in calm from the beginning."""
        may_overtake = self.world.rules.most_holders > 1
        in_order = self.is_closing and (self.asked_to_end_at or 0.0) > self.world.calm_since
        if not self.commits_stored or not in_order or may_overtake:
            return []
        committed = self.wire.committed
        late = {
            place: offset
            for place, offset in self.stored.items()
            if committed.get((self.group_id, place.topic, place.partition), -1) < offset
        }
        return [f"stored {late}; committed are {committed}"] if late else []

    def _commit_soon(self, consumer: Consumer, item: OffsetToCommit) -> None:
        self.soon_asked += 1
        number = self.soon_asked

        def then(_items: object, error: object) -> None:
            self.world.note(self.name, "commit reported", (number, repr(error)[:100]))
            self.soon_answered += 1
            if self.soon_answered != number:
                text = f"{self.name} gets commit {number} as number {self.soon_answered}"
                self.world.rules.violation("commits-reordered", text)
            if self.may("raise", 0.1):
                raise self.planned_error()

        consumer.commit_soon([item], then)

    async def subscribe(self) -> None:
        """Ask for other topics."""
        names = [name for name in self.world.plan.topics if self.rng.random() < 0.6] or list(self.world.plan.topics)
        self.subscribed = tuple(names)
        assert self.consumer is not None
        await self.consumer.subscribe(names)


class ConnectLife(SharingLife):
    """A worker that runs connectors and tasks."""

    worker: ConnectWorker | None = None

    @property
    def member(self) -> Any:
        return self.worker

    def is_valid(self) -> bool:
        return self.worker is not None and super().is_valid()

    async def use(self) -> None:
        plan = self.world.plan
        self.worker = self.client.connect_worker(
            self.group_id,
            None if plan.connects_topics else self._configured,
            connectors=tuple(plan.topics) if plan.connects_topics else (),
            url="" if self.instance_id else f"http://{self.name.partition('.')[0]}",
            protocols=plan.stages[self.stage],
            scheduled_rebalance_max_delay=0.8,
            refresh_interval=1.0,
            session_timeout=plan.session_ms / 1000,
            rebalance_timeout=plan.rebalance_ms / 1000,
            group_instance_id=self.instance_id,
            on_assigned=self.on_assigned,
            on_revoked=self.on_revoked,
            on_lost=self.on_lost,
        )
        async with self.worker:
            await self.until_stopped()

    async def _configured(self) -> Collection[WorkItem]:
        await self.odd_assign()
        return self.world.work_items


COOPERATIVE = "cooperative"
"""The protocol of members that keep what they hold while they join; their metadata says it."""


def _holding(held: bytes | None, _generation_id: int) -> dict[str, bytes]:
    return {COOPERATIVE: held or b""}


def _left_of(share: bytes, other: bytes) -> bytes:
    return bytes(number for number in share if number not in other)


def _numbers(share: bytes) -> tuple[int, ...]:
    return tuple(share)


class MemberLife(SharingLife):
    """A member of a kind of its own: its share is a set of small numbers, one byte each."""

    bare: Member[bytes] | None = None
    places = staticmethod(_numbers)

    @property
    def member(self) -> Any:
        return self.bare

    def is_valid(self) -> bool:
        return self.bare is not None and super().is_valid()

    async def use(self) -> None:
        plan = self.world.plan
        self.bare = self.client.member(
            self.group_id,
            protocol_type="numbers",
            protocols=_holding if plan.cooperative_members else {"v2": b"two", "v1": b"one"},
            assign=self._assign,
            without=_left_of if plan.cooperative_members else None,
            session_timeout=plan.session_ms / 1000,
            rebalance_timeout=plan.rebalance_ms / 1000,
            group_instance_id=self.instance_id,
            on_assigned=self.on_assigned,
            on_revoked=self.on_revoked,
            on_lost=self.on_lost,
        )
        async with self.bare:
            await self.until_stopped()

    async def _assign(self, generation: Generation) -> dict[str, bytes]:
        await self.odd_assign()
        members, numbers = generation.members, range(self.world.numbers)
        shares = {each.member_id: bytes(numbers[index :: len(members)]) for index, each in enumerate(members)}
        if generation.protocol_name == COOPERATIVE:
            for each in members:
                held_by_others = b"".join(other.metadata for other in members if other is not each)
                shares[each.member_id] = _left_of(shares[each.member_id], held_by_others)
        return shares
