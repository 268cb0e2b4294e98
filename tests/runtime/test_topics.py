"""Waiting for a topic, or for any of a namespace, to change: a call parks while it is what the caller knows."""

from __future__ import annotations

import asyncio

from rota.core.replica.ports import Replica
from rota.protocol.errors import ErrorCode
from rota.protocol.ids import shard_of
from rota.protocol.messages import DeleteTopic, GetTopic, ListGroups, ListTopics, ListTopicsReply, PutTopic, TopicReply
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryTables
from tests.runtime.conftest import NOW, FaultyStore, until
from tests.runtime.test_routing import RunningReplica, a_replica, settled


async def put(coordinator: LocalCoordinator, partitions: int, **attributes: str) -> TopicReply:
    reply = (await coordinator.call(PutTopic("default", "words", partitions, attributes))).reply
    assert isinstance(reply, TopicReply)
    return reply


async def changed(coordinator: LocalCoordinator, version: str, wait_ms: int = 20_000) -> TopicReply:
    reply = (await coordinator.call(GetTopic("default", "words", version, wait_ms))).reply
    assert isinstance(reply, TopicReply)
    return reply


async def parked(coordinator: LocalCoordinator, version: str) -> asyncio.Task[TopicReply]:
    """A call that has looked at the topic and waits."""
    task = asyncio.create_task(changed(coordinator, version))
    await until(lambda: any(("default", "") in shard.watchers for shard in coordinator.loop.shards.values()))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_growth_attributes_and_deletion_are_reported(coordinator: LocalCoordinator) -> None:
    first = await put(coordinator, 4)

    waiting = await parked(coordinator, first.version)
    await put(coordinator, 8)
    grown = await waiting
    waiting = await parked(coordinator, grown.version)
    await put(coordinator, 8, rack="r1")
    labelled = await waiting
    waiting = await parked(coordinator, labelled.version)
    await coordinator.call(DeleteTopic("default", "words"))
    gone = await waiting

    assert (grown.partitions, labelled.attributes) == (8, {"rack": "r1"})
    assert gone.error is ErrorCode.UNKNOWN_TOPIC


async def test_a_topic_that_is_not_there_can_be_waited_for(coordinator: LocalCoordinator) -> None:
    waiting = await parked(coordinator, "")
    await put(coordinator, 4)

    assert (await waiting).partitions == 4


async def test_a_watch_answers_old_versions_at_once_and_others_later(
    coordinator: LocalCoordinator,
) -> None:
    old = await put(coordinator, 4)
    new = await put(coordinator, 8)

    assert (await changed(coordinator, old.version)).partitions == 8
    assert (await changed(coordinator, new.version, wait_ms=10)).version == new.version


async def test_a_change_that_is_not_durable_is_not_reported(coordinator: LocalCoordinator, store: FaultyStore) -> None:
    first = await put(coordinator, 4)
    waiting = await parked(coordinator, first.version)
    store.open_gate.clear()
    growing = asyncio.create_task(put(coordinator, 8))
    await store.waiting.wait()
    notified_before = waiting.done()
    store.open_gate.set()

    assert not notified_before
    assert (await waiting).partitions == 8
    await growing


# --- all topics of a namespace ----------------------------------------------------------------------


class LateStore(FaultyStore):
    """It names the members that are up when the test lets it."""

    def __init__(self, tables: MemoryTables) -> None:
        super().__init__(tables)
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def register(self, replica: Replica, lease_ms: int) -> list[Replica]:
        self.asked.set()
        await self.may_answer.wait()
        return await super().register(replica, lease_ms)


async def listed(replica: LocalCoordinator | RunningReplica, version: str = "", wait_ms: int = 0) -> ListTopicsReply:
    coordinator = replica.routed if isinstance(replica, RunningReplica) else replica
    reply = (await coordinator.call(ListTopics("default", "", 2, version, wait_ms))).reply
    assert isinstance(reply, ListTopicsReply)
    return reply


async def waiting_for_news(
    replica: LocalCoordinator | RunningReplica, owner: LocalCoordinator | None = None
) -> asyncio.Task[ListTopicsReply]:
    """A call that has looked at the topics and waits for others, at their owner."""
    local = replica.local if isinstance(replica, RunningReplica) else replica
    shard = (owner or local).loop.shards[shard_of("default", "", local.shard_count)]
    version = (await listed(replica)).version
    before = len(shard.watchers.get(("default", ""), ()))
    task = asyncio.create_task(listed(replica, version, wait_ms=20_000))
    await until(lambda: len(shard.watchers.get(("default", ""), ())) > before)
    return task


async def test_a_replica_of_unknown_shards_does_not_report_emptiness(
    tables: MemoryTables, coordinator: LocalCoordinator
) -> None:
    """The leader would assign nothing to any member: a rolling restart would stop the work of a group."""
    await put(coordinator, 4)
    late = LateStore(tables)
    await late.open(2)
    async with LocalCoordinator(late, shard_count=2, limits=NOW, replica_id="late") as starting:
        await late.asked.wait()

        replies = [(await starting.call(request)).reply for request in (ListTopics("default"), ListGroups("default"))]
        late.may_answer.set()

    assert [reply.error for reply in replies] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2


async def test_waiting_calls_learn_what_another_replica_has_changed(tables: MemoryTables) -> None:
    async with a_replica(tables, "r1") as one, a_replica(tables, "r2") as two:
        await settled([one, two])
        owner = (one if one.local.is_here("default", "") else two).local
        waiting = [await waiting_for_news(one, owner), await waiting_for_news(two, owner)]

        await one.routed.call(PutTopic("default", "words", 4, {}))

        reported = [await each for each in waiting]

    assert [[topic.partitions for topic in each.topics] for each in reported] == [[4], [4]]
    assert reported[0].version == reported[1].version


async def test_a_wait_ends_with_the_owner_of_the_topics_and_goes_on_at_the_next(tables: MemoryTables) -> None:
    async with a_replica(tables, "r1") as one, a_replica(tables, "r2") as two:
        await settled([one, two])
        owner, other = (one, two) if one.local.is_here("default", "") else (two, one)
        waiting = await waiting_for_news(other, owner.local)

        await owner.local.drain()
        ended = await waiting
        await settled([other])
        waiting = await waiting_for_news(other)
        await other.routed.call(PutTopic("default", "words", 4, {}))

        assert ended.error in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert [topic.partitions for topic in (await waiting).topics] == [4]


async def test_no_version_comes_back_with_what_it_stood_for(store: FaultyStore) -> None:
    """Not after a change is taken back, nor over a restart; and a restart alone makes no new version."""
    listings: list[str] = []
    topics: list[str] = []
    for _ in range(3):
        async with LocalCoordinator(store, shard_count=4) as coordinator:
            await coordinator.wait_until_ready()
            restarted = (await listed(coordinator)).version
            assert listings[-1:] in ([], [restarted])
            for partitions, attributes in ((2, {}), (2, {"weights": "9,1"}), (2, {})):
                reply = (await coordinator.call(PutTopic("default", "words", partitions, attributes))).reply
                assert isinstance(reply, TopicReply)
                topics.append(reply.version)
                listings.append((await listed(coordinator)).version)
            await coordinator.call(DeleteTopic("default", "words"))
            listings.append((await listed(coordinator)).version)

    assert len(set(topics)) == len(topics) == 9
    assert len(set(listings)) == len(listings) == 12


async def test_changes_of_two_topics_have_a_version_for_each_order(store: FaultyStore) -> None:
    seen: list[str] = []
    async with LocalCoordinator(store, shard_count=4) as coordinator:
        await coordinator.wait_until_ready()
        for topic in ("a", "b", "b", "a", "a", "b"):
            await coordinator.call(PutTopic("default", topic, 1, {}))
            seen.append((await listed(coordinator)).version)
            await coordinator.call(DeleteTopic("default", topic))
            seen.append((await listed(coordinator)).version)

    assert len(set(seen)) == len(seen)
