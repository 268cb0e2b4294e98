"""The runtime does what groups leave to the server: topics from all replicas, strategies that break, new owners."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from rota.core.replica import assigning
from rota.core.types import Generation, ProtocolType, ServerSide, TopicFacts, registry
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    PutTopic,
    SyncGroup,
    SyncReply,
)
from rota.protocol.messages import Protocol as Listed
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryTables
from tests.runtime.conftest import NOW, FaultyStore, until
from tests.runtime.test_routing import RunningReplica, a_group_of, a_replica, settled


def a_thin_join(
    group_id: str, metadata: bytes, protocol_type: str = "consumer", name: str = "server:range"
) -> JoinGroup:
    return JoinGroup(
        "default",
        group_id,
        protocol_type,
        (Listed(name, metadata),),
        10_000,
        10_000,
        group_instance_id="i",
        wait_ms=5_000,
    )


async def synced(replica: LocalCoordinator | RunningReplica, group_id: str, joined: JoinReply) -> SyncReply:
    coordinator = replica.routed if isinstance(replica, RunningReplica) else replica
    request = SyncGroup("default", group_id, joined.member_id, joined.generation_id, wait_ms=5_000)
    reply = (await coordinator.call(request)).reply
    assert isinstance(reply, SyncReply)
    return reply


@pytest.fixture(params=["assign", "assign at once", "wants_topic", "topic"])
def breaking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plug-in's type that raises: while it assigns, names the topics that it wants, or judges one topic."""

    def fail(*_: object) -> Any:
        raise RuntimeError("out of luck")

    wants = {"assign": lambda _: lambda _: True, "wants_topic": fail, "topic": lambda _: fail}
    side = ServerSide(assigns=lambda name: name == "server:luck", assign=fail, wants_topic=wants.get(request.param))
    monkeypatch.setitem(registry._TYPES, "gamble", ProtocolType("gamble", lambda _: {}, lambda _: {}, server=side))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A type with a strategy that notes whether it runs in the thread of the event loop."""
    here = threading.get_ident()
    on_loop: list[bool] = []

    def assign(generation: Generation, topics: Mapping[str, TopicFacts]) -> dict[str, bytes]:
        on_loop.append(threading.get_ident() == here)
        return {}

    side = ServerSide(
        assigns=lambda name: name == "server:watched", assign=assign, wants_topic=lambda _: lambda _: True
    )
    monkeypatch.setitem(registry._TYPES, "watched", ProtocolType("watched", lambda _: {}, lambda _: {}, server=side))
    return on_loop


async def test_topics_of_all_replicas_are_assigned(tables: MemoryTables) -> None:
    async with a_replica(tables, "r1") as one, a_replica(tables, "r2") as two:
        await settled([one, two])
        for number in range(12):
            await one.routed.call(PutTopic("default", f"t{number}", 1, {}))

        joined = (await two.routed.call(a_thin_join("everything", b'{"topics": ["t*"]}'))).reply
        assert isinstance(joined, JoinReply)
        reply = await synced(two, "everything", joined)

    assert reply.error is ErrorCode.NONE
    assert len(json.loads(reply.assignment)["topics"]) == 12


async def test_a_topic_registered_elsewhere_is_assigned_unpolled(
    tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assigning, "REFRESH_MS", 3_600_000)
    async with a_replica(tables, "r1") as one, a_replica(tables, "r2") as two:
        await settled([one, two])
        group_id = a_group_of(one)
        joined = (await one.routed.call(a_thin_join(group_id, b'{"topics": ["t"]}'))).reply
        assert isinstance(joined, JoinReply)
        before = await synced(one, group_id, joined)
        topic_elsewhere = a_group_of(two)
        await two.routed.call(PutTopic("default", topic_elsewhere, 1, {}))
        rejoined = a_thin_join(group_id, json.dumps({"topics": [topic_elsewhere]}).encode())
        again = (await one.routed.call(replace(rejoined, member_id=joined.member_id))).reply
        assert isinstance(again, JoinReply)
        first = await synced(one, group_id, again)
        await two.routed.call(PutTopic("default", topic_elsewhere, 2, {}))

        beat = Heartbeat("default", group_id, again.member_id, again.generation_id, wait_ms=30_000)
        reported = (await one.routed.call(beat)).reply

    assert isinstance(reported, HeartbeatReply)
    assert reported.generation_id == again.generation_id + 1
    assert [json.loads(reply.assignment)["topics"] for reply in (before, first)] == [{}, {topic_elsewhere: [0]}]


async def test_a_strategy_that_breaks_fails_its_own_group_only(store: FaultyStore, breaking: None) -> None:
    async with LocalCoordinator(store, shard_count=2, limits=NOW) as coordinator:
        await coordinator.wait_until_ready()
        await coordinator.call(PutTopic("default", "t", 3, {}))
        join = a_thin_join("unlucky", b"", "gamble", "server:luck")
        unlucky = (await coordinator.call(join)).reply
        assert isinstance(unlucky, JoinReply)
        failed = await synced(coordinator, "unlucky", unlucky)
        joined = (await coordinator.call(a_thin_join("lucky", b'{"topics": ["t"]}'))).reply
        assert isinstance(joined, JoinReply)
        reply = await synced(coordinator, "lucky", joined)

    assert failed.error in (ErrorCode.ASSIGNMENT_FAILED, ErrorCode.REBALANCE_IN_PROGRESS)
    assert "out of luck" in failed.detail
    assert json.loads(reply.assignment) == {"topics": {"t": [0, 1, 2]}}


async def test_only_a_large_group_is_assigned_off_the_event_loop(store: FaultyStore, watched: list[bool]) -> None:
    async with LocalCoordinator(store, shard_count=2, limits=NOW) as coordinator:
        await coordinator.wait_until_ready()
        await coordinator.call(PutTopic("default", "t", 10, {}))
        await coordinator.call(a_thin_join("small", b"", "watched", "server:watched"))
        await until(lambda: watched == [True])

        await coordinator.call(PutTopic("default", "t", 10_000, {}))
        await coordinator.call(a_thin_join("large", b"", "watched", "server:watched"))
        await until(lambda: watched == [True, False])
