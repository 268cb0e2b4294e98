"""Consumers against the real coordinator, in virtual time: what moves and what stays, progress, subscriptions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest

from rota.client import (
    Consumer,
    FencedInstanceId,
    MembershipLost,
    OffsetToCommit,
    TopicPartition,
)
from rota.client.events import Lost
from rota.protocol.messages import CommitOffsets
from rota.server.runtime.coordinator import LocalCoordinator
from tests.client.stage import GROUP, SESSION_S, TOPICS, Partitions, Worker, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time

ALL = tuple(TopicPartition("work", number) for number in range(12))
TICK_S = 0.01


class Diary:
    """The arguments of callbacks, and which partitions were worked on without a gap."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, Partitions]] = []
        self.deadlines: list[float | None] = []
        self.drain_s = 0.0

    def on_assigned(self, added: Partitions, held: Partitions, *, deadline: float | None) -> None:
        assert set(added) <= set(held)
        self.reported.append(("assigned", added))
        self.deadlines.append(deadline)

    async def on_revoked(self, removed: Partitions, *, deadline: float | None) -> None:
        self.deadlines.append(deadline)
        await asyncio.sleep(self.drain_s)
        self.reported.append(("revoked", removed))

    def on_lost(self, removed: Partitions) -> None:
        self.reported.append(("lost", removed))


def a_consumer(coordinator: LocalCoordinator, diary: Diary | None = None, **options: Any) -> Consumer:
    diary = diary or Diary()
    return a_worker(coordinator).client.consumer(
        GROUP,
        options.pop("topics", TOPICS),
        session_timeout=SESSION_S,
        on_assigned=diary.on_assigned,
        on_revoked=diary.on_revoked,
        on_lost=diary.on_lost,
        **options,
    )


def are_shared(consumers: Sequence[Consumer], partitions: Sequence[TopicPartition] = ALL) -> bool:
    held = [place for consumer in consumers for place in consumer.assignment or ()]
    return sorted(held) == sorted(partitions)


# --- cooperative ------------------------------------------------------------------------------


@in_virtual_time
async def test_partitions_that_do_not_move_never_pause() -> None:
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        first = await stack.enter_async_context(a_consumer(coordinator))
        await first.wait_assigned()
        worked: dict[TopicPartition, list[float]] = {place: [] for place in ALL}

        async def work() -> None:
            while True:
                for place in first.assignment or ():
                    worked[place].append(asyncio.get_running_loop().time())
                await asyncio.sleep(TICK_S)

        worker = asyncio.create_task(work())
        others = [await stack.enter_async_context(a_consumer(coordinator)) for _ in range(3)]
        await until(lambda: are_shared([first, *others]) and all(each.assignment for each in others))
        await asyncio.sleep(1)
        worker.cancel()
        kept = first.assignment or ()
        assert len(kept) == 3
        assert first.generation_id > 2
        gaps = [after - before for place in kept for before, after in pairwise(worked[place])]
        assert max(gaps) < 2 * TICK_S


@in_virtual_time
async def test_callbacks_receive_additions_removals_and_deadlines() -> None:
    async with a_coordinator() as coordinator:
        diary = Diary()
        async with a_consumer(coordinator, diary) as first:
            await first.wait_assigned()
            async with a_consumer(coordinator) as other:
                await until(lambda: are_shared([first, other]) and len(first.assignment or ()) == 6)
                assert [what for what, _ in diary.reported if what != "assigned"] == ["revoked"]
                (moved,) = [places for what, places in diary.reported if what == "revoked"]
                assert sorted(other.assignment or ()) == sorted(moved)
                assert [len(places) for what, places in diary.reported if what == "assigned"] == [12, 0, 0]
            await until(lambda: are_shared([first]))
            assert sorted(diary.reported[-1][1]) == sorted(moved)
        assert None not in diary.deadlines


@in_virtual_time
async def test_what_a_static_member_never_gave_up_is_called_for() -> None:
    """It died while it was to give something up, and started anew without knowing."""
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        stuck = Diary()
        stuck.drain_s = 3_600
        leader = await stack.enter_async_context(a_consumer(coordinator, topics={"work": 4}))
        places = ALL[:4]
        await leader.wait_assigned()
        doomed = a_consumer(coordinator, stuck, topics={"work": 4}, group_instance_id="pod-0", leave_on_close=False)
        running = asyncio.create_task(held_open(doomed))
        await until(lambda: are_shared([leader, doomed], places))
        async with a_consumer(coordinator, topics={"work": 4}) as third:
            await until(lambda: doomed.assignment is not None and len(doomed.assignment) == 1)
            running.cancel()
            heir = a_consumer(coordinator, topics={"work": 4}, group_instance_id="pod-0")
            async with heir:
                await until(lambda: are_shared([leader, third, heir], places))
        with pytest.raises(FencedInstanceId):
            await running


async def held_open(consumer: Consumer) -> None:
    async with consumer:
        await asyncio.Event().wait()


# --- progress ---------------------------------------------------------------------------------


@in_virtual_time
async def test_a_commit_during_a_resync_counts_in_the_new_generation() -> None:
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        counts = {"work": 12}
        options: dict[str, Any] = {"partitions_per_topic": lambda topics: dict(counts), "topics_refresh_interval": 1.0}
        worker = a_worker(coordinator)
        members = [
            await stack.enter_async_context(each.client.consumer(GROUP, "work", "roundrobin", **options))
            for each in (a_worker(coordinator), worker)
        ]
        follower = members[1]
        await until(lambda: are_shared(members) and members[0].is_leader)
        place = (follower.assignment or ())[0]
        worker.cable.commits_may_go.clear()
        commit = asyncio.create_task(follower.commit([OffsetToCommit(*place, 5)]))
        counts["work"] = 13
        await until(lambda: follower.generation_id == 2)
        worker.cable.commits_may_go.set()
        await commit
        assert (await follower.committed())[place] == 5
        assert [request.generation_id for request in commits_of(worker)] == [1, 2]


@in_virtual_time
async def test_a_commit_during_a_rebalance_follows_its_partition() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with worker.client.consumer(GROUP, TOPICS, session_timeout=SESSION_S) as first:
            await first.wait_assigned()
            worker.cable.commits_may_go.clear()
            commits = {place: asyncio.create_task(first.commit([OffsetToCommit(*place, 5)])) for place in ALL}
            async with a_consumer(coordinator) as other:
                await until(lambda: are_shared([first, other]) and bool(other.assignment))
                worker.cable.commits_may_go.set()
                outcomes = dict(zip(ALL, await asyncio.gather(*commits.values(), return_exceptions=True), strict=True))
                kept = first.assignment or ()
                assert all(outcomes[place] is None for place in kept)
                assert all(isinstance(outcomes[place], MembershipLost) for place in other.assignment or ())
                assert set((await first.committed()).values()) == {5}


def commits_of(worker: Worker) -> list[CommitOffsets]:
    return [request for request in worker.cable.requests if isinstance(request, CommitOffsets)]


@in_virtual_time
async def test_only_what_is_held_can_be_stored() -> None:
    async with a_coordinator() as coordinator, a_consumer(coordinator) as consumer:
        await consumer.wait_assigned()
        with pytest.raises(MembershipLost, match="other/0"):
            consumer.store("other", 0, 1)


@in_virtual_time
async def test_a_stalled_member_gives_its_share_up_until_it_works() -> None:
    async with a_coordinator() as coordinator:
        diary = Diary()
        async with a_consumer(coordinator, diary, max_processing_interval=10.0) as stuck:
            await stuck.wait_assigned()
            async with a_consumer(coordinator) as other:
                events = [event async for event in until_lost(stuck)]
                assert "no progress for 10 s" in events[-1].reason
                await until(lambda: are_shared([other]))
                assert diary.reported[-1][0] == "lost"
                stuck.progress()
                await until(lambda: are_shared([stuck, other]) and bool(stuck.assignment))


async def until_lost(consumer: Consumer) -> Any:
    async for event in consumer.events():
        if isinstance(event, Lost):
            yield event
            return


# --- subscriptions ----------------------------------------------------------------------------


@in_virtual_time
async def test_a_pattern_subscribes_to_present_and_future_topics() -> None:
    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        await client.put_topic("logs-a", 2)
        await client.put_topic("other", 2)
        consumer = client.consumer("g", re.compile(r"logs-\w+"), topics_refresh_interval=1.0)
        async with consumer:
            await until(lambda: consumer.assignment == (("logs-a", 0), ("logs-a", 1)))
            await client.put_topic("logs-b", 1)
            await until(lambda: consumer.assignment == (("logs-a", 0), ("logs-a", 1), ("logs-b", 0)))


@in_virtual_time
async def test_growth_that_takes_nothing_from_anybody_revokes_nothing() -> None:
    async with a_coordinator() as coordinator:
        counts, diary = {"work": 2}, Diary()
        options: dict[str, Any] = {"topics": "work", "strategy": "range", "topics_refresh_interval": 0.5}
        consumer = a_consumer(coordinator, diary, partitions_per_topic=lambda topics: dict(counts), **options)
        async with consumer:
            await consumer.wait_assigned()
            counts["work"] = 3
            await until(lambda: len(consumer.assignment or ()) == 3)
            assert diary.reported == [("assigned", ALL[:2]), ("assigned", ALL[2:3])]


@in_virtual_time
async def test_a_changed_subscription_swaps_old_for_new() -> None:
    async with a_coordinator() as coordinator:
        diary = Diary()
        async with a_consumer(coordinator, diary, topics={"work": 2}) as consumer:
            await consumer.wait_assigned()
            await consumer.subscribe({"rest": 1})
            await until(lambda: consumer.assignment == (("rest", 0),))
            assert diary.reported == [("assigned", ALL[:2]), ("revoked", ALL[:2]), ("assigned", (("rest", 0),))]
            assert consumer.subscription == ("rest",)


@in_virtual_time
async def test_the_environment_may_make_a_member_static(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_GROUP_INSTANCE_ID", "pod-7")
    async with a_coordinator() as coordinator, a_consumer(coordinator) as consumer:
        await consumer.wait_assigned()
        group = await a_worker(coordinator).client.describe_group(GROUP)
        assert [member.group_instance_id for member in group.members] == ["pod-7"]


@in_virtual_time
async def test_a_member_comes_back_with_a_subscription_changed_since() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator, drain_s=1.0)
        async with worker.member() as consumer:
            await consumer.wait_assigned()
            stepping = asyncio.create_task(consumer.step_aside("for a while"))
            await asyncio.sleep(0.5)
            await consumer.subscribe({"rest": 1})
            await stepping
            consumer.come_back()
            await consumer.wait_assigned()
            assert consumer.assignment == (("rest", 0),)


@in_virtual_time
async def test_a_leader_that_could_not_compare_topics_tries_again_soon() -> None:
    """No notification of a change is left then: the program's function raised when it came."""
    async with a_coordinator() as coordinator:
        worker, answers = a_worker(coordinator), [1, 1]

        def counts(topics: Sequence[str]) -> dict[str, int]:
            if not answers:
                answers.extend([2] * 100)
                raise OSError("the catalogue is away")
            return dict.fromkeys(topics, answers.pop())

        async with worker.client.consumer(
            GROUP, ["docs"], partitions_per_topic=counts, topics_refresh_interval=60.0
        ) as consumer:
            await until(lambda: len(answers) > 2)
            began_at = asyncio.get_running_loop().time()
            await until(lambda: len(consumer.assignment or ()) == 2)
            assert asyncio.get_running_loop().time() < began_at + 5
