"""Every unary rpc, called with the generated stubs: answers, errors with their details, deadlines, hang-ups."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest

from rota.core.access.sources import Proxies, parse_networks
from rota.core.replica.ports import Answer
from rota.protocol.ids import shard_of
from rota.protocol.messages import DescribeGroup, DescribeReply
from rota.server.grpc.receiving import host_of
from rota.server.grpc.server import GrpcServer
from rota.server.observability.metrics import Metrics
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryStore
from rota.v1 import admin_pb2
from rota.v1 import coordinator_pb2 as pb
from tests.grpc.clients import Channel, G, a_join, a_stable_member, a_sync, admin, refused, stub
from tests.runtime.conftest import until

# --- membership -----------------------------------------------------------------------------------


async def test_a_member_syncs_heartbeats_and_leaves(channel: Channel) -> None:
    joined = await stub(channel).JoinGroup(a_join())
    synced = await stub(channel).SyncGroup(a_sync(joined, {joined.member_id: b"all"}))
    assert (synced.assignment, synced.generation_id, synced.pending) == (b"all", 1, False)

    beat = pb.HeartbeatRequest(**G, member_id=joined.member_id, generation_id=1)
    alive = await stub(channel).Heartbeat(beat)
    assert (alive.generation_id, alive.state) == (1, "Stable")

    leaving = pb.LeavingMember(group_instance_id="i1", reason="done")
    left = await stub(channel).LeaveGroup(pb.LeaveGroupRequest(**G, members=[leaving]))
    assert [(m.group_instance_id, m.error) for m in left.members] == [("i1", "NONE")]
    assert (await refused(stub(channel).Heartbeat(beat))).code == "UNKNOWN_MEMBER_ID"


async def test_every_answer_says_where_in_history_it_stands(channel: Channel) -> None:
    joined = await stub(channel).JoinGroup(a_join())
    synced = await stub(channel).SyncGroup(a_sync(joined, {joined.member_id: b"all"}))
    beat = pb.HeartbeatRequest(**G, member_id=joined.member_id, generation_id=7)
    gone = await refused(stub(channel).Heartbeat(beat))

    assert synced.revision > joined.revision > 0
    assert synced.epoch == joined.epoch == 1
    assert (int(gone.metadata["revision"]), gone.metadata["epoch"]) == (synced.revision, "1")


async def test_batched_heartbeats_are_answered_with_trouble_alone(channel: Channel) -> None:
    one = await a_stable_member(channel)
    beats = [pb.MemberHeartbeat(member_id=m, generation_id=1) for m in (one.member_id, "stranger")]
    groups = [
        pb.GroupHeartbeat(**G, members=beats),
        pb.GroupHeartbeat(namespace="default", group_id="none", members=beats[:1]),
    ]

    answer = await stub(channel).HeartbeatMany(pb.HeartbeatManyRequest(groups=groups))

    ours, none = answer.groups
    assert (ours.error, ours.state, ours.generation_id) == ("NONE", "Stable", 1)
    assert [(e.member_id, e.error) for e in ours.errors] == [("stranger", "UNKNOWN_MEMBER_ID")]
    assert (none.state, [e.error for e in none.errors]) == ("Dead", ["UNKNOWN_MEMBER_ID"])


# --- progress, fences, leaders --------------------------------------------------------------------


async def test_a_commit_names_its_retention(channel: Channel) -> None:
    offsets = [
        pb.OffsetToCommit(topic="t", partition=0, offset=5, retention_time_ms=60_000),
        pb.OffsetToCommit(topic="t", partition=1, offset=5),
    ]
    await stub(channel).CommitOffsets(pb.CommitOffsetsRequest(**G, offsets=offsets))

    kept, other = (await stub(channel).FetchOffsets(pb.FetchOffsetsRequest(**G))).offsets
    assert kept.expires_at_ms - kept.committed_at_ms == 60_000
    assert not other.HasField("expires_at_ms")

    zero = [pb.OffsetToCommit(topic="t", partition=0, offset=5, retention_time_ms=0)]
    rejected = await refused(stub(channel).CommitOffsets(pb.CommitOffsetsRequest(**G, offsets=zero)))
    assert rejected.code == "INVALID_REQUEST"


async def test_a_fence_holds_for_the_generation_and_breaks_with_it(channel: Channel) -> None:
    member = await a_stable_member(channel)
    holds = await stub(channel).VerifyFence(pb.VerifyFenceRequest(**G, generation_id=1, member_id=member.member_id))
    assert (holds.generation_id, holds.is_leader, holds.is_member) == (1, True, True)

    broken = await refused(stub(channel).VerifyFence(pb.VerifyFenceRequest(**G, generation_id=0)))
    assert (broken.status, broken.code, broken.domain) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "ILLEGAL_GENERATION",
        "rota",
    )


async def test_the_leader_is_shown_and_waited_for(channel: Channel) -> None:
    waiting = asyncio.ensure_future(stub(channel).GetLeader(pb.GetLeaderRequest(**G, wait_ms=20_000)))
    member = await a_stable_member(channel)

    leader = await waiting

    assert (leader.leader_id, leader.generation_id, leader.group_instance_id) == (member.member_id, 1, "i1")


async def test_a_permit_is_granted_by_the_answer_to_the_sync(channel: Channel) -> None:
    wish = [pb.Protocol(name="server:permits", metadata=b'{"permits": 3}')]
    joined = await stub(channel).JoinGroup(a_join(protocol_type="permits", protocols=wish))

    synced = await stub(channel).SyncGroup(a_sync(joined))

    token = synced.fencing_token
    assert json.loads(synced.assignment).items() >= {"permit": 0, "token": token, "of": 3, "place": 0}.items()
    described = await admin(channel).DescribeGroup(admin_pb2.DescribeGroupRequest(namespace="default", group_id="g"))
    reported = json.loads(described.members[0].assignment_decoded)
    assert reported == {"permit": 0, "token": token, "of": 3, "place": 0}


async def test_a_group_is_frozen_and_a_member_may_leave(channel: Channel) -> None:
    said = [pb.Protocol(name="single", metadata=b"")]
    joined = await stub(channel).JoinGroup(a_join(protocol_type="leader", protocols=said))
    freeze = admin_pb2.FreezeGroupRequest(namespace="default", group_id="g", for_ms=60_000, reason="a deploy")
    drain = admin_pb2.DrainMemberRequest(namespace="default", group_id="g", member_id=joined.member_id)

    frozen = await admin(channel).FreezeGroup(freeze)
    described = await admin(channel).DescribeGroup(admin_pb2.DescribeGroupRequest(namespace="default", group_id="g"))
    refused = await admin(channel).DrainMember(drain)
    await admin(channel).FreezeGroup(admin_pb2.FreezeGroupRequest(namespace="default", group_id="g"))
    granted = await admin(channel).DrainMember(drain)

    assert (described.frozen_until_ms, described.frozen_reason) == (frozen.frozen_until_ms, "a deploy")
    assert (refused.granted, granted.granted, list(granted.leaving)) == (False, True, [joined.member_id])


# --- administration -------------------------------------------------------------------------------


# --- following a group ----------------------------------------------------------------------------


async def test_a_group_is_followed_from_a_revision_on(channel: Channel) -> None:
    joined = await stub(channel).JoinGroup(a_join())
    watch = admin(channel).WatchGroup(admin_pb2.WatchGroupRequest(**G, after_revision=0))
    past = [await watch.read() for _ in range(4)]
    await stub(channel).SyncGroup(a_sync(joined, {joined.member_id: b"all"}))
    synced = await watch.read()

    assert [line.kind for line in past] == [
        "member_joined",
        "rebalance_started",
        "generation_completed",
        "leader_changed",
    ]
    assert (synced.kind, synced.generation_id, synced.epoch) == ("assignment_synced", 1, 1)
    assert f'"leader_id":"{joined.member_id}"' in synced.payload_json
    watch.cancel()
    resumed = admin(channel).WatchGroup(admin_pb2.WatchGroupRequest(**G, after_revision=past[-1].revision))
    assert await resumed.read() == synced
    resumed.cancel()


async def test_who_follows_sees_what_it_does_after_the_headers_came(channel: Channel) -> None:
    watch = admin(channel).WatchGroup(admin_pb2.WatchGroupRequest(**G))
    await watch.initial_metadata()

    await stub(channel).JoinGroup(a_join())

    assert (await watch.read()).kind == "member_joined"
    watch.cancel()


async def test_a_drain_ends_a_watch_so_that_it_is_resumed_elsewhere(channel: Channel, server: GrpcServer) -> None:
    watch = admin(channel).WatchGroup(admin_pb2.WatchGroupRequest(**G))
    await watch.initial_metadata()

    await server.drain()
    ended = await refused(watch.read())

    assert (ended.status, ended.code) == (grpc.StatusCode.UNAVAILABLE, "COORDINATOR_NOT_AVAILABLE")
    assert ended.retry_after_s == 1


async def test_a_watch_of_what_is_no_group_is_refused(channel: Channel) -> None:
    watch = admin(channel).WatchGroup(admin_pb2.WatchGroupRequest(namespace="default", group_id="?"))

    assert (await refused(watch.read())).code == "INVALID_GROUP_ID"


@pytest.fixture
async def pruned(channel: Channel, store: MemoryStore) -> int:
    """The first line that is left of the journal of the group, which has a Stable member."""
    await a_stable_member(channel)
    shard_id = shard_of("default", G["group_id"], 2)
    first = store.tables.load(shard_id).last_seq - 1
    store.tables.prune_shard(shard_id, first - 1)
    return first


@pytest.mark.parametrize("after", [0, 1])
async def test_a_watch_behind_pruned_lines_gets_the_first_revision(
    channel: Channel, pruned: int, metrics: Metrics, after: int
) -> None:
    watch = admin(channel).WatchGroup(admin_pb2.WatchGroupRequest(**G, after_revision=after))

    ended = await refused(watch.read())

    assert (ended.status, ended.code) == (grpc.StatusCode.OUT_OF_RANGE, "REVISION_OUT_OF_RANGE")
    assert ended.metadata["first_revision"] == str(pruned)
    assert f"read on after revision {pruned - 1}" in ended.detail
    assert b'code="REVISION_OUT_OF_RANGE",operation="WatchGroup"' in metrics.exposition()


async def test_a_watch_with_two_beginnings_is_refused(channel: Channel) -> None:
    request = admin_pb2.WatchGroupRequest(**G, from_earliest=True, after_revision=0)

    assert (await refused(admin(channel).WatchGroup(request).read())).code == "INVALID_REQUEST"


# --- deadlines and hang-ups -----------------------------------------------------------------------


async def a_group_that_waits_for(channel: Channel, instance: str = "i1") -> None:
    """A Stable group with one member, which will not come back soon, so that newcomers wait for it."""
    await a_stable_member(channel, instance)


@pytest.fixture
def waits_ms(coordinator: LocalCoordinator, monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """How long each call that comes to the coordinator is to wait."""
    noted: list[int | None] = []
    call = coordinator.call

    async def noting(request: Any) -> Answer:
        noted.append(getattr(request, "wait_ms", 0))
        return await call(request)

    monkeypatch.setattr(coordinator, "call", noting)
    return noted


def is_cut(wait_ms: int | None) -> bool:
    """To what a caller leaves that waits for 8 s, of which no machine is so busy that it takes half on the way."""
    return wait_ms is not None and 4_000 < wait_ms < 8_000


@pytest.mark.parametrize("wait_ms", [None, 20_000])
async def test_a_wait_is_cut_to_end_before_the_callers_deadline(
    channel: Channel, coordinator: LocalCoordinator, waits_ms: list[int | None], wait_ms: int | None
) -> None:
    await a_group_that_waits_for(channel)

    waiting = stub(channel).JoinGroup(a_join("i2", wait_ms=wait_ms), timeout=8)
    await until(lambda: coordinator.parked() == 1)

    assert is_cut(waits_ms[-1])
    waiting.cancel()


async def test_a_wait_that_is_over_is_answered_as_pending(channel: Channel) -> None:
    await a_group_that_waits_for(channel)

    joined = await stub(channel).JoinGroup(a_join("i2", wait_ms=20))

    assert joined.pending
    assert joined.member_id.startswith("i2-")


async def test_a_heartbeat_waits_no_longer_than_the_callers_deadline(
    channel: Channel, coordinator: LocalCoordinator, waits_ms: list[int | None]
) -> None:
    member = await a_stable_member(channel)
    beat = pb.HeartbeatRequest(**G, member_id=member.member_id, generation_id=1, wait_ms=9_000)

    waiting = stub(channel).Heartbeat(beat, timeout=8)
    await until(lambda: coordinator.parked() == 1)

    assert is_cut(waits_ms[-1])
    waiting.cancel()


async def test_a_caller_that_hangs_up_waits_no_more_but_stays_a_member(
    channel: Channel, coordinator: LocalCoordinator
) -> None:
    await a_group_that_waits_for(channel)
    waiting = stub(channel).JoinGroup(a_join("i2"))
    await until(lambda: coordinator.parked() == 1)

    waiting.cancel()

    await until(lambda: coordinator.parked() == 0)
    described = (await coordinator.call(DescribeGroup("default", "g"))).reply
    assert isinstance(described, DescribeReply)
    assert [m.session_deadline_ms is not None for m in described.members] == [True, True]


async def test_a_draining_coordinator_answers_who_waits(channel: Channel, coordinator: LocalCoordinator) -> None:
    await a_group_that_waits_for(channel)
    waiting = asyncio.ensure_future(refused(stub(channel).JoinGroup(a_join("i2"))))
    await until(lambda: coordinator.parked() == 1)

    await coordinator.drain()
    reported = await waiting

    assert (reported.status, reported.code, reported.retry_after_s) == (
        grpc.StatusCode.UNAVAILABLE,
        "COORDINATOR_NOT_AVAILABLE",
        1,
    )


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"namespace": "a:b"}, "INVALID_REQUEST"),
        ({"group_id": ""}, "INVALID_GROUP_ID"),
        ({"session_timeout_ms": 1}, "INVALID_SESSION_TIMEOUT"),
        ({"session_timeout_ms": -1}, "INVALID_REQUEST"),
        ({"wait_ms": -1}, "INVALID_REQUEST"),
        ({"client_id": "a\nb"}, "INVALID_REQUEST"),
        ({"reason": "x" * 1_001}, "PAYLOAD_TOO_LARGE"),
        ({"reason": "\0"}, "INVALID_REQUEST"),
        ({"protocols": []}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"protocols": [pb.Protocol(name="p", metadata=b"x" * 65_537)]}, "PAYLOAD_TOO_LARGE"),
        ({"protocols": [pb.Protocol(name="p")] * 65}, "PAYLOAD_TOO_LARGE"),
        ({"member_id": "stranger"}, "UNKNOWN_MEMBER_ID"),
    ],
)
async def test_a_bad_join_is_refused_with_the_protocols_code(
    channel: Channel, fields: dict[str, Any], code: str
) -> None:
    assert (await refused(stub(channel).JoinGroup(a_join(**fields)))).code == code


async def test_a_message_that_is_a_little_too_large_is_refused_by_name(channel: Channel) -> None:
    protocols = [pb.Protocol(name=f"p{i}", metadata=b"x" * 139_000) for i in range(64)]

    assert (await refused(stub(channel).JoinGroup(a_join(protocols=protocols)))).code == "PAYLOAD_TOO_LARGE"


async def test_what_was_answered_is_counted(channel: Channel, metrics: Metrics) -> None:
    await a_stable_member(channel)
    await refused(stub(channel).JoinGroup(a_join(group_id="?")))

    exposed = metrics.exposition().decode()

    assert 'rota_requests_total{code="NONE",operation="SyncGroup"} 1.0' in exposed
    assert 'rota_requests_total{code="INVALID_GROUP_ID",operation="JoinGroup"} 1.0' in exposed


@pytest.mark.parametrize(
    ("peer", "host"),
    [("ipv4:10.0.0.7:1234", "10.0.0.7"), ("ipv6:%5B::1%5D:1234", "::1"), ("unix:/run/rota.sock", ""), ("", "")],
)
def test_the_callers_host_is_read_from_grpcs_name_for_it(peer: str, host: str) -> None:
    assert host_of(peer) == host


@pytest.mark.parametrize(("trusted", "host"), [("127.0.0.0/8", "192.0.2.7"), ("10.0.0.0/8", "127.0.0.1")])
async def test_a_member_is_where_a_proxy_that_is_trusted_says(
    coordinator: LocalCoordinator, trusted: str, host: str
) -> None:
    server = GrpcServer(coordinator, proxies=Proxies(parse_networks(trusted)))
    await server.start("127.0.0.1")
    async with grpc.aio.insecure_channel(server.address) as channel:
        await stub(channel).JoinGroup(a_join(), metadata=(("x-forwarded-for", "made-up, 192.0.2.7"),))
        described = await admin(channel).DescribeGroup(admin_pb2.DescribeGroupRequest(**G))
    await server.stop(0)

    assert [member.host for member in described.members] == [host]


async def test_a_call_without_memory_is_unavailable_for_now(
    channel: Channel, coordinator: LocalCoordinator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def without_memory(*_: object) -> None:
        raise MemoryError

    for name in ("call", "submit", "try_heartbeat"):
        monkeypatch.setattr(coordinator, name, without_memory)

    answer = await refused(stub(channel).CommitOffsets(pb.CommitOffsetsRequest(namespace="default", group_id="g")))

    assert (answer.status, answer.detail) == (grpc.StatusCode.UNAVAILABLE, "the server is short of memory")
    assert "short of memory" in caplog.text
