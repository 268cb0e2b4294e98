"""Topics, members and faults in any order: soon after the last, each partition has one holder that was notified."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from rota.client import Client, Consumer, TopicPartition
from rota.server.runtime.coordinator import LocalCoordinator
from tests.client.stage import Cable, a_coordinator
from tests.client.virtual_time import in_virtual_time

SESSION_S = 6.0
SETTLED_S = SESSION_S + 5
REFRESH_S = 2.0


@dataclass
class Running:
    """One member, and what its callbacks say that it holds."""

    coordinator: LocalCoordinator
    topics: Any
    strategy: str | tuple[str, ...]
    instance_id: str | None = None
    drain_s: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    held: set[TopicPartition] = field(default_factory=set)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    on_revoked: Callable[[], None] = lambda: None
    """Called after each revocation."""

    def start(self) -> Running:
        self.cable = Cable(self.coordinator)
        self.consumer: Consumer = Client(self.cable, client_id="w").consumer(
            "g",
            self.topics,
            self.strategy,
            session_timeout=SESSION_S,
            topics_refresh_interval=REFRESH_S,
            group_instance_id=self.instance_id,
            on_assigned=lambda added, _all: self.held.update(added),
            on_revoked=self._stop,
            on_lost=self.held.difference_update,
            **self.options,
        )
        self.task = asyncio.create_task(self._run())
        return self

    async def _run(self) -> None:
        async with self.consumer:
            await self.ended.wait()

    async def _stop(self, removed: tuple[TopicPartition, ...]) -> None:
        await asyncio.sleep(self.drain_s)
        self.held.difference_update(removed)
        self.on_revoked()

    async def close(self) -> None:
        self.ended.set()
        await self.task

    async def die(self) -> None:
        """As by `kill -9`: the coordinator receives no more from it."""
        self.cable.pull()
        self.task.cancel()
        await asyncio.wait((self.task,))
        self.held.clear()


async def settled(
    members: list[Running], partitions: Callable[[], dict[str, int]], copies: int = 1, seconds: float = SETTLED_S
) -> None:
    """Every partition of the topics has its holders in time, and keeps them."""
    deadline = asyncio.get_running_loop().time() + seconds
    while wrong := wrongly_held(members, partitions(), copies):
        assert asyncio.get_running_loop().time() < deadline, wrong
        await asyncio.sleep(0.05)
    await asyncio.sleep(1)
    assert not wrongly_held(members, partitions(), copies)


def wrongly_held(members: list[Running], partitions: dict[str, int], copies: int) -> dict[TopicPartition, int]:
    held = Counter(place for member in members for place in member.held)
    wanted = {TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)}
    due = min(copies, len(members))
    return {place: held[place] for place in wanted | set(held) if held[place] != (due if place in wanted else 0)}


@in_virtual_time
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky", "server:range"])
async def test_members_with_other_patterns_each_get_what_matches(strategy: str) -> None:
    async with a_coordinator() as coordinator:
        admin = Client(Cable(coordinator))
        topics = {"t1": 3, "u1": 2}
        for topic, partitions in topics.items():
            await admin.put_topic(topic, partitions)
        members = [Running(coordinator, re.compile(pattern), strategy).start() for pattern in ("t.*", "u.*")]
        await settled(members, lambda: topics)
        for topic in ("u2", "t2"):
            topics[topic] = 4
            await admin.put_topic(topic, 4)
            await settled(members, lambda: topics)
        assert [{place.topic[0] for place in member.held} for member in members] == [{"t"}, {"u"}]
        for member in members:
            await member.close()


# --- all of it at once ---------------------------------------------------------------------------


@in_virtual_time
@pytest.mark.parametrize(("strategy", "is_served"), [("cooperative-redundant(2)", True), ("redundant(2)", False)])
async def test_a_copy_is_revoked_only_while_another_member_serves(strategy: str, is_served: bool) -> None:
    members: list[Running] = []
    least: list[int] = []

    def count() -> None:
        holders = Counter(place for member in members for place in member.held)
        least.append(min(holders[TopicPartition("t", number)] for number in range(6)))

    def join() -> None:
        members.append(Running(coordinator, "t", strategy, drain_s=0.5, on_revoked=count).start())

    async with a_coordinator() as coordinator:
        await Client(Cable(coordinator)).put_topic("t", 6)
        for _ in range(5):
            join()
            await settled(members, lambda: {"t": 6}, copies=2)
        await asyncio.sleep(SETTLED_S)
        assert sorted(len(member.held) for member in members) == [2, 2, 2, 3, 3], "12 copies, evenly"
        await members[0].close()
        members.pop(0)
        await settled(members, lambda: {"t": 6}, copies=2)
        last = len(least)
        for member in members:
            await member.close()

    assert (min(least[:last]) > 0) is is_served
