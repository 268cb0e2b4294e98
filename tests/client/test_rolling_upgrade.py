"""A group moves from `range` to `cooperative-sticky` while its members work: at rest each partition has one holder."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from rota.client import Client, Consumer, CoordinatorError, Member, MembershipLost, TopicPartition
from rota.core.types.consumer import PROTOCOL_TYPE, Subscription, decode_assignment, encode_subscription
from rota.protocol.messages import OffsetToCommit
from rota.server.runtime.coordinator import LocalCoordinator
from tests.client.stage import Cable, a_coordinator, within
from tests.client.virtual_time import in_virtual_time

TOPICS = {"work": 12}
ALL = [TopicPartition("work", number) for number in range(12)]
SESSION_S = 3.0
AT_REST_S = SESSION_S + 5
EAGER, BOTH, COOPERATIVE = ("range",), ("cooperative-sticky", "range"), ("cooperative-sticky",)


@dataclass
class Process:
    """One consumer as one process runs it: it commits all the time, and dies or closes on demand."""

    group: Group
    strategies: tuple[str, ...]
    instance_id: str | None
    consumer: Consumer = field(init=False)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    commits: Counter[TopicPartition] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.cable = Cable(self.group.coordinator)
        self.consumer = Client(self.cable, client_id="w").consumer(
            "g",
            TOPICS,
            self.strategies,
            session_timeout=SESSION_S,
            group_instance_id=self.instance_id,
            on_revoked=lambda _removed: asyncio.sleep(self.group.random.random() * self.group.drain_s),
        )
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self.consumer:
            load = asyncio.create_task(self._work())
            await self.ended.wait()
            load.cancel()

    async def _work(self) -> None:
        for offset in itertools.count(1):
            await asyncio.sleep(0.25)
            held = self.consumer.assignment or ()
            try:
                await self.consumer.commit([OffsetToCommit(*place, offset) for place in held])
            except (MembershipLost, CoordinatorError):
                continue
            self.commits.update(held)

    async def close(self) -> None:
        self.ended.set()
        await self.task

    async def die(self) -> None:
        """As by `kill -9`: the coordinator receives no more from it."""
        self.cable.pull()
        self.task.cancel()
        await asyncio.wait((self.task,))


@dataclass
class Group:
    coordinator: LocalCoordinator
    random: random.Random
    is_static: bool
    processes: list[Process] = field(default_factory=list)
    drain_s: float = 0.1
    """How long `on_revoked` takes at most."""
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def start(self, strategies: tuple[str, ...], instance_id: str | None = None) -> Process:
        if self.is_static and instance_id is None:
            instance_id = f"pod-{next(self.numbers)}"
        process = Process(self, strategies, instance_id)
        self.processes.append(process)
        return process

    async def upgrade(self, process: Process, strategies: tuple[str, ...]) -> None:
        self.processes.remove(process)
        await process.close()
        # Some are back before the others have rebalanced without them, some later.
        await asyncio.sleep(self.random.choice([0.0, 0.3, 1.5, SESSION_S + 1]))
        self.start(strategies, process.instance_id)

    def unowned(self) -> list[TopicPartition]:
        held = Counter(place for each in self.processes for place in each.consumer.assignment or ())
        return [place for place in ALL if held[place] != 1]

    def holders(self) -> dict[TopicPartition, Process]:
        return {place: each for each in self.processes for place in each.consumer.assignment or ()}

    async def is_at_rest(self) -> None:
        """Each partition gets one holder in time, and keeps it."""
        await within(AT_REST_S, lambda: not self.unowned(), lambda: f"unowned: {self.unowned()}")
        await asyncio.sleep(1)
        assert self.unowned() == []

    async def watch(self) -> None:
        """No partition has two holders, at any moment."""
        while True:
            held = Counter(place for each in self.processes for place in each.consumer.assignment or ())
            assert not [place for place, holders in held.items() if holders > 1]
            await asyncio.sleep(0.05)


@asynccontextmanager
async def a_group(seed: int, *, is_static: bool) -> AsyncIterator[Group]:
    async with a_coordinator() as coordinator:
        group = Group(coordinator, random.Random(seed), is_static)
        watching = asyncio.create_task(group.watch())
        try:
            yield group
        finally:
            for process in group.processes:
                await process.close()
            watching.cancel()
            await asyncio.wait((watching,))
        assert watching.cancelled(), watching.exception()


@pytest.mark.parametrize("strategies", [BOTH, COOPERATIVE], ids=["both", "cooperative"])
@in_virtual_time
async def test_a_second_member_gets_its_half(strategies: tuple[str, ...]) -> None:
    async with a_group(1, is_static=False) as group:
        for _ in range(2):
            group.start(strategies)
            await group.is_at_rest()
        assert [len(each.consumer.assignment or ()) for each in group.processes] == [6, 6]


# --- claims that lead to nothing -----------------------------------------------------------------


def a_liar(coordinator: LocalCoordinator, claims: Sequence[TopicPartition], generation_id: int) -> Member[bytes]:
    """It says in each join that it holds partitions, and gives nothing up."""
    said = encode_subscription(Subscription(("work",), owned_partitions=tuple(claims), generation_id=generation_id))

    def lead(*_: object) -> dict[str, bytes]:
        raise AssertionError("it does not lead")

    return Client(Cable(coordinator), client_id="z").member(
        "g",
        protocol_type=PROTOCOL_TYPE,
        protocols={"cooperative-sticky": said},
        assign=lead,
        session_timeout=SESSION_S,
    )


def given(group: Group, liar: Member[bytes]) -> list[TopicPartition]:
    """All partitions that any member was assigned."""
    own = decode_assignment(liar.assignment or b"").partitions
    return sorted([*own, *(place for each in group.processes for place in each.consumer.assignment or ())])


@pytest.mark.parametrize("generation_id", [-1, 0, 1, 2, 5, 1_000])
@in_virtual_time
async def test_a_false_claim_cannot_keep_a_partition_from_others(generation_id: int) -> None:
    async with a_group(1, is_static=False) as group:
        for _ in range(2):
            group.start(COOPERATIVE)
        await group.is_at_rest()
        async with a_liar(group.coordinator, ALL, generation_id) as liar:
            await liar.wait_assigned()
            await within(AT_REST_S, lambda: given(group, liar) == ALL, lambda: given(group, liar))
            await asyncio.sleep(AT_REST_S)
            assert given(group, liar) == ALL


@in_virtual_time
async def test_a_claim_that_is_never_revoked_is_assigned_all_the_same() -> None:
    """It claims all when no member has anything: only the leader's own check can free the withheld partitions."""
    async with a_group(1, is_static=False) as group:
        leader = group.start(COOPERATIVE)
        await asyncio.sleep(0.01)  # It is the first, and the first generation has not begun yet.
        async with a_liar(group.coordinator, ALL, generation_id=0) as liar:
            await liar.wait_assigned()
            assert leader.consumer.generation_id == 1
            assert given(group, liar) != ALL
            await within(AT_REST_S, lambda: given(group, liar) == ALL, lambda: given(group, liar))
