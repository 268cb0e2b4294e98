"""Many that follow one group or one namespace: each is notified, and no other call waits for all of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rota.core.access.document import AccessDocument
from rota.core.access.rules import Rule
from rota.core.replica.ports import JournalEvent, Replica
from rota.protocol.calls import Action
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import (
    CommitOffsets,
    GetLeader,
    JoinReply,
    ListTopics,
    OffsetToCommit,
    PutTopic,
    SyncGroup,
)
from rota.server.access.guard import Guard, GuardedCoordinator
from rota.server.runtime import loop
from rota.server.runtime.coordinator import LocalCoordinator
from tests.runtime.conftest import EVENTUALLY_S, NOW, FaultyStore, a_join, a_stable_member, until, until_ready

RULES = (Rule("visible", ("anonymous",), frozenset({Action.DESCRIBE}), topics=("t*",)),)


class Policy:
    document = AccessDocument(rules=RULES)


class Anonymous:
    policy = Policy()


class Counted:
    """Counts the pages that are asked for, and has something happen between the first two."""

    def __init__(self, inner: LocalCoordinator, *between: PutTopic) -> None:
        self.inner = inner
        self.between = list(between)
        self.pages = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def call(self, request: Any) -> Any:
        answer = await self.inner.call(request)
        self.pages += 1
        if self.between:
            await self.inner.call(self.between.pop())
        return answer


def guarded(inner: Counted) -> GuardedCoordinator:
    return GuardedCoordinator(inner, Guard(Anonymous(), Limits()))  # type: ignore[arg-type]


async def some_turns() -> None:
    """The loop closes a generator within another one in a later turn."""
    for _ in range(10):
        await asyncio.sleep(0)


async def a_stable_pair(coordinator: LocalCoordinator) -> tuple[JoinReply, JoinReply]:
    """A leader and a follower, both static, that have synced."""
    leader = await a_stable_member(coordinator)
    joining = asyncio.create_task(coordinator.call(a_join(instance="i2")))
    await asyncio.sleep(0)
    leads = (await coordinator.call(a_join(instance="i1", member_id=leader.member_id))).reply
    follows = (await joining).reply
    assert isinstance(leads, JoinReply)
    assert isinstance(follows, JoinReply)
    shares = ((leads.member_id, b"1"), (follows.member_id, b"2"))
    await coordinator.call(SyncGroup("default", "g", leads.member_id, leads.generation_id, assignments=shares))
    await coordinator.call(SyncGroup("default", "g", follows.member_id, follows.generation_id))
    return leads, follows


# --- lists of topics ----------------------------------------------------------------------------------


async def test_topics_behind_many_hidden_ones_take_few_pages(coordinator: LocalCoordinator) -> None:
    for number in range(1_500):
        await coordinator.call(PutTopic("n", f"hidden-{number:04}", 1))
    await coordinator.call(PutTopic("n", "t", 1))
    counted = Counted(coordinator)

    reply: Any = (await guarded(counted).call(ListTopics("n", limit=1))).reply

    assert [each.topic for each in reply.topics] == ["t"]
    assert counted.pages == 3


async def test_a_change_between_two_pages_is_not_in_the_version_of_the_list(coordinator: LocalCoordinator) -> None:
    for name in ("hidden", "t0", "t1", "t2"):
        await coordinator.call(PutTopic("n", name, 1))
    counted = Counted(coordinator, PutTopic("n", "t0", 7))

    reply: Any = (await guarded(counted).call(ListTopics("n", limit=2))).reply

    now: Any = (await coordinator.call(ListTopics("n"))).reply
    assert reply.topics[0].partitions == 1
    assert reply.version != now.version


async def test_of_those_that_wait_for_a_change_one_is_answered_in_each_turn(coordinator: LocalCoordinator) -> None:
    await coordinator.call(PutTopic("n", "t", 1))
    known: Any = (await coordinator.call(ListTopics("n"))).reply
    waiting = ListTopics("n", version=known.version, wait_ms=60_000)
    calls = [asyncio.create_task(coordinator.call(waiting)) for _ in range(50)]
    await asyncio.sleep(0)

    await coordinator.call(PutTopic("n", "t", 2))
    turns = 0
    while not all(call.done() for call in calls):
        await asyncio.sleep(0)
        turns += 1

    assert turns >= len(calls)
    replies: list[Any] = [(await call).reply for call in calls]
    assert {reply.topics[0].partitions for reply in replies} == {2}


# --- events of a group --------------------------------------------------------------------------------


async def test_a_join_phase_that_begins_in_an_answered_call_is_notified_of_at_once(
    coordinator: LocalCoordinator, store: FaultyStore
) -> None:
    leader, _ = await a_stable_pair(coordinator)
    await coordinator.loop.flush()
    lines: list[JournalEvent] = []
    coordinator.subscribe("default", "g", lines.extend)
    appends = len(store.appends)

    of_a_stranger = (("stranger", b"x"), (leader.member_id, b"z"))
    sync = SyncGroup("default", "g", leader.member_id, leader.generation_id, assignments=of_a_stranger)
    reply = (await coordinator.call(sync)).reply

    assert reply.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert [line.kind for line in lines] == ["rebalance_started"]
    await until(lambda: len(store.appends) > appends)


async def test_a_watch_that_was_cut_off_takes_no_later_one_along(
    coordinator: LocalCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "BACKLOG", 2)
    member = await a_stable_member(coordinator)

    async def commit(times: int) -> None:
        for offset in range(times):
            commits = (OffsetToCommit("t", 0, offset),)
            await coordinator.call(CommitOffsets("default", "g", member.generation_id, commits, member.member_id))

    async def next_of(watch: Any) -> asyncio.Task[JournalEvent]:
        following: asyncio.Task[JournalEvent] = asyncio.create_task(anext(watch))
        await some_turns()
        return following

    async def end(watch: Any) -> None:
        await watch.aclose()
        await some_turns()

    lagging, short, last = (coordinator.watch("default", "g") for _ in range(3))
    first = await next_of(lagging)
    await commit(1)
    await first
    await commit(5)  # It is cut off here.
    second = await next_of(short)
    await commit(1)
    await second
    await end(short)
    third = await next_of(last)

    await end(lagging)
    await commit(1)

    async with asyncio.timeout(EVENTUALLY_S):
        assert (await third).kind == "offsets_committed"
    await end(last)


# --- the end ------------------------------------------------------------------------------------------


class SilentPeers:
    """Peers that do not answer."""

    def submit(self, *_: object) -> Any:
        return lambda: None

    async def notify_released(self, _: object) -> None: ...

    async def notify_topics_changed(self, *_: object) -> None: ...

    async def held(self, _: object) -> tuple[()]:
        return ()

    async def close(self) -> None: ...


async def test_a_client_that_hangs_up_in_the_turn_of_the_drain_keeps_no_shard(store: FaultyStore) -> None:
    coordinator = LocalCoordinator(store, shard_count=2, limits=NOW, peers=SilentPeers())  # type: ignore[arg-type]
    await coordinator.start()
    await until_ready(coordinator)
    forwarder = coordinator.forwarder
    assert forwarder is not None
    peer, request = Replica("r2", "a", "b"), GetLeader("n", "g", wait_ms=30_000)
    hangs_up, waits = (asyncio.create_task(forwarder._ask_peer(peer, request)) for _ in range(2))
    await asyncio.sleep(0)
    end_rounds = coordinator._ownership.end_rounds

    async def then_hang_up() -> None:
        await end_rounds()
        hangs_up.cancel()

    coordinator._ownership.end_rounds = then_hang_up  # type: ignore[method-assign]
    await coordinator.stop()

    await asyncio.gather(hangs_up, waits, return_exceptions=True)
    assert all(owner.lease_left_ms <= 0 for owner in await store.owners())
