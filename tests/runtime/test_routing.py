"""Several replicas on one store: any of them answers anything, also while shards move."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from sys import getrefcount

import pytest
from msgspec.structs import replace

from rota.core.replica import forwarding
from rota.core.replica.forwarding import UNANSWERED, Submitted
from rota.core.replica.ports import Answer, Replica, ShardNews
from rota.core.types.consumer import decode_plain_assignment
from rota.protocol.errors import ErrorCode
from rota.protocol.ids import shard_of
from rota.protocol.messages import (
    CommitOffsets,
    DescribeGroup,
    DescribeReply,
    FetchOffsets,
    Heartbeat,
    HeartbeatMany,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    LeavingMember,
    LeftMember,
    ListGroups,
    ListReply,
    ListTopics,
    MemberHeartbeat,
    OffsetToCommit,
    Protocol,
    PutTopic,
    SyncGroup,
    SyncReply,
)
from rota.server.liveness.memory import MemoryLiveness
from rota.server.peer.client import GrpcPeers
from rota.server.peer.server import PeerServer
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator, RoutedCoordinator
from rota.testing.memory import MemoryTables
from tests.runtime.conftest import NOW, FaultyStore, a_join, a_stable_member, until

SHARDS = 16
OF_TOPICS = shard_of("default", "", SHARDS)
LEASE_MS = 60_000
"""Longer than any pause that a busy machine makes; a third of it is what a message that was lost costs."""
LONG_MS = 600_000
SOON_S = 10.0
"""Half of what gRPC itself gives a peer to say its first word."""


@dataclass
class RunningReplica:
    local: LocalCoordinator
    routed: RoutedCoordinator


@asynccontextmanager
async def a_replica(
    tables: MemoryTables,
    name: str,
    *,
    forward: bool = True,
    lease_ms: int = LEASE_MS,
    liveness: MemoryLiveness | None = None,
) -> AsyncIterator[RunningReplica]:
    """A replica that others reach over real gRPC."""
    store = FaultyStore(tables)
    await store.open(SHARDS)
    peers = GrpcPeers()
    local = LocalCoordinator(
        store,
        shard_count=SHARDS,
        limits=NOW,
        replica_id=name,
        address=f"http://{name}",
        lease_ms=lease_ms,
        peers=peers,
        forward=forward,
        liveness=liveness,
    )
    server = PeerServer(local, "127.0.0.1", is_open=True)
    local.reached_at(peer_address=f"127.0.0.1:{server.port}")
    await server.start()
    try:
        async with local:
            yield RunningReplica(local, RoutedCoordinator(local))
    finally:
        await server.stop()
        await peers.close()


@pytest.fixture
async def fleet(tables: MemoryTables) -> AsyncIterator[list[RunningReplica]]:
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(a_replica(tables, name)) for name in ("r1", "r2", "r3")]
        await settled(replicas)
        yield replicas


async def settled(replicas: list[RunningReplica]) -> None:
    """Every shard has an owner, and each replica knows it."""

    def complete() -> bool:
        held = [len(r.local.owners()) for r in replicas]
        return sum(held) == SHARDS and all(r.local.ready()[0] for r in replicas)

    await until(complete)
    for replica in replicas:
        replica.local.nudge()
    for replica in replicas:
        await replica.local.directory.look()


def a_group_of(replica: RunningReplica) -> str:
    names = (f"g{n}" for n in range(1_000))
    return next(n for n in names if replica.local.locate("default", n).replica_id == replica.local.replica_id)


async def submitted(replica: RunningReplica, request: Submitted) -> Answer:
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    replica.routed.submit(request, answered.set_result)
    return await answered


async def test_any_replica_takes_what_is_submitted_for_any_group(fleet: list[RunningReplica]) -> None:
    first, second, _ = fleet
    group = a_group_of(first)
    member = await a_stable_member(first.routed, group)  # type: ignore[arg-type]
    named = (member.member_id, member.generation_id)
    requests: list[Submitted] = [
        Heartbeat("default", group, *named),
        HeartbeatMany("default", group, (MemberHeartbeat(*named), MemberHeartbeat("m", 1))),
        CommitOffsets("default", group, -1, (OffsetToCommit("t", 0, 7),)),
    ]

    at_owner, forwarded = [[await submitted(each, request) for request in requests] for each in (first, second)]

    assert [answer.reply for answer in forwarded] == [answer.reply for answer in at_owner]
    assert [answer.epoch for answer in forwarded] == [answer.epoch for answer in at_owner]


async def test_a_parked_call_is_forwarded_too(fleet: list[RunningReplica]) -> None:
    first, second, third = fleet
    group = a_group_of(first)
    leader = await a_stable_member(second.routed, group)  # type: ignore[arg-type]
    parked = asyncio.create_task(third.routed.call(a_join(group, instance="i2")))
    await until(lambda: first.local.parked() == 1)

    rejoined = (await second.routed.call(a_join(group, instance="i1", member_id=leader.member_id))).reply
    joined = (await parked).reply

    assert isinstance(rejoined, JoinReply)
    assert isinstance(joined, JoinReply)
    assert joined.generation_id == rejoined.generation_id == leader.generation_id + 1


async def test_a_forwarded_client_that_hangs_up_is_unparked(fleet: list[RunningReplica]) -> None:
    first, second, _ = fleet
    group = a_group_of(first)
    await a_stable_member(first.routed, group)  # type: ignore[arg-type]
    parked = asyncio.create_task(second.routed.call(a_join(group, instance="i2")))
    await until(lambda: first.local.parked() == 1)

    parked.cancel()

    await until(lambda: first.local.parked() == 0)


@pytest.mark.parametrize("at_owner", [False, True])
async def test_a_submitted_call_is_unparked_by_its_cancel(at_owner: bool, fleet: list[RunningReplica]) -> None:
    """It gets no answer, wherever its group is."""
    first, second, _ = fleet
    group = a_group_of(first)
    await a_stable_member(first.routed, group)  # type: ignore[arg-type]
    answers: list[Answer] = []
    replica = first if at_owner else second
    cancel = replica.routed.submit(a_join(group, instance="i2"), answers.append)
    await until(lambda: first.local.parked() == 1)

    assert cancel is not None
    cancel()
    cancel()
    await until(lambda: first.local.parked() == 0)

    assert answers == []


@pytest.mark.parametrize("is_answered", [False, True])
async def test_a_parked_call_leaves_the_collector_nothing(is_answered: bool, fleet: list[RunningReplica]) -> None:
    """Otherwise thousands of calls wait for it after each large rebalance."""
    first = fleet[0]
    group = a_group_of(first)
    joined = await a_stable_member(first.routed, group)  # type: ignore[arg-type]
    answers, request = list[Answer](), a_join(group, instance="i2")
    references = getrefcount(request)
    gc.disable()
    try:
        cancel = first.routed.submit(request, answers.append)
        assert cancel is not None
        if is_answered:
            await first.routed.call(a_join(group, instance="i1", member_id=joined.member_id))
            await until(lambda: len(answers) == 1)
        else:
            cancel()
        del cancel
        await asyncio.sleep(0)

        assert getrefcount(request) == references
    finally:
        gc.enable()


async def test_a_call_cancelled_while_its_shard_moves_ends(fleet: list[RunningReplica]) -> None:
    """The refusal is there, and goes out in the next turn of the event loop."""
    first = fleet[0]
    group = a_group_of(first)
    await a_stable_member(first.routed, group)  # type: ignore[arg-type]
    forwarder, answers = first.local.forwarder, list[Answer]()
    cancel = first.routed.submit(a_join(group, instance="i2"), answers.append)
    await until(lambda: first.local.parked() == 1)
    assert cancel is not None
    assert forwarder is not None

    owned = first.local.loop.leases.owned[shard_of("default", group, SHARDS)]
    first.local.loop.drop(owned, "handed over", ErrorCode.NOT_COORDINATOR, undecided=True)
    cancel()
    await asyncio.sleep(0)

    assert not forwarder._finishing
    assert answers == []


async def test_a_forwarded_leave_goes_on_without_its_client(fleet: list[RunningReplica]) -> None:
    """As at its owner: a call that does not park has nothing that could be cancelled."""
    first, second, _ = fleet
    group = a_group_of(first)
    member = await a_stable_member(first.routed, group)  # type: ignore[arg-type]
    answers: list[Answer] = []

    leave = LeaveGroup("default", group, (LeavingMember(member.member_id),))
    cancel = second.routed.submit(leave, answers.append)
    if cancel is not None:
        cancel()
    await until(lambda: bool(answers))

    assert answers[0].reply == LeaveReply(members=(LeftMember(member.member_id, None, ErrorCode.NONE),))


@pytest.mark.parametrize("is_submitted", [False, True])
async def test_a_draining_replica_ends_calls_parked_at_a_peer(is_submitted: bool, fleet: list[RunningReplica]) -> None:
    first, second, _ = fleet
    group = a_group_of(first)
    await a_stable_member(first.routed, group)  # type: ignore[arg-type]
    join = a_join(group, instance="i2")
    parked = asyncio.create_task(submitted(second, join) if is_submitted else second.routed.call(join))
    await until(lambda: first.local.parked() == 1)

    await second.local.drain()

    assert (await parked).reply.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await until(lambda: first.local.parked() == 0)


async def test_a_replica_stops_without_the_answer_of_a_silent_peer(tables: MemoryTables) -> None:
    answers: list[Answer] = []
    async with a_silent_peer(tables), a_replica(tables, "r1") as replica:
        await until(lambda: replica.local.directory.peer_of(shard_of("default", "g", SHARDS)) is not None)
        replica.routed.submit(CommitOffsets("default", "g", -1, (OffsetToCommit("t", 0, 7),)), answers.append)

        async with asyncio.timeout(forwarding.ANSWER_MS / 1000):
            await replica.routed.stop()

    assert {answer.reply.error for answer in answers} <= {ErrorCode.COORDINATOR_NOT_AVAILABLE}


async def test_a_listing_has_the_groups_of_all_replicas(fleet: list[RunningReplica]) -> None:
    groups = sorted(a_group_of(replica) for replica in fleet)
    for group in groups:
        await fleet[0].routed.call(CommitOffsets("default", group, -1, (OffsetToCommit("t", 0, 1),)))

    reply = (await fleet[2].routed.call(ListGroups("default"))).reply

    assert isinstance(reply, ListReply)
    assert [group.group_id for group in reply.groups] == groups


async def end_rounds(replica: RunningReplica) -> None:
    """End the rounds of a replica, so that it keeps its directory."""
    await replica.local._ownership.end_rounds()


async def has_not_seen(replica: RunningReplica, other: str) -> Callable[[], None]:
    """Have a replica know nothing of another, which has shards nevertheless, until the returned function is called."""
    await end_rounds(replica)
    directory = replica.local.directory
    known, directory.peers = directory.peers, [peer for peer in directory.peers if peer.replica_id != other]
    return lambda: setattr(directory, "peers", known)


async def test_without_forwarding_the_answer_names_the_owner(tables: MemoryTables) -> None:
    async with a_replica(tables, "r1", forward=False) as first, a_replica(tables, "r2", forward=False) as second:
        await settled([first, second])

        answer = await second.routed.call(DescribeGroup("default", a_group_of(first)))

    assert answer.reply.error is ErrorCode.NOT_COORDINATOR
    assert answer.owner == "http://r1"


async def test_without_forwarding_the_server_assigns_all_topics(tables: MemoryTables) -> None:
    """The topics of a group may be in the shard of another replica than its owner."""
    async with a_replica(tables, "r1", forward=False) as first, a_replica(tables, "r2", forward=False) as second:
        await settled([first, second])
        has_topics, other = (first, second) if first.local.is_here("default", "") else (second, first)
        await has_topics.routed.call(PutTopic("default", "orders", 2))
        metadata = json.dumps({"topics": ["orders"]}).encode()
        joining = a_join(protocols=(Protocol("server:range", metadata),), protocol_type="consumer")
        synced = await _synced(other, replace(joining, group_id=a_group_of(other)))

    assert decode_plain_assignment(synced.assignment) == (("orders", 0), ("orders", 1))


async def test_groups_keep_what_they_have_while_the_shard_of_their_topics_has_no_owner(
    tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "MOVE_MS", 0)
    async with a_replica(tables, "r1") as one, a_replica(tables, "r2") as two:
        await settled([one, two])
        moving, staying = (one, two) if one.local.is_here("default", "") else (two, one)
        await staying.routed.call(PutTopic("default", "orders", 2))
        metadata = json.dumps({"topics": ["orders"]}).encode()
        joining = a_join(protocols=(Protocol("server:range", metadata),), protocol_type="consumer")
        group = a_group_of(staying)
        await _synced(staying, replace(joining, group_id=group))
        before = (await staying.routed.call(DescribeGroup("default", group))).reply
        assert isinstance(before, DescribeReply)
        (member,) = before.members

        see = await has_not_seen(staying, moving.local.replica_id)
        staying.local.on_topics_changed(["default"])
        unlisted = (await staying.routed.call(ListTopics("default"))).reply
        beat = Heartbeat("default", group, member.member_id, before.generation_id)
        kept_alive = (await submitted(staying, beat)).reply
        kept = (await staying.routed.call(DescribeGroup("default", group))).reply
        see()
        await moving.routed.call(PutTopic("default", "orders", 3))

        assert unlisted.error in UNANSWERED
        assert kept_alive.error is ErrorCode.NONE
        assert isinstance(kept, DescribeReply)
        assert (kept.generation_id, kept.members[0].assignment) == (before.generation_id, member.assignment)
        groups = staying.local.loop.shards[shard_of("default", group, SHARDS)].owned.shard.groups
        holder = groups["default", group].members[member.member_id]
        await until(lambda: len(decode_plain_assignment(holder.assignment)) == 3)


async def _synced(replica: RunningReplica, joining: JoinGroup) -> SyncReply:
    """The first member of a group has joined and has its assignment."""
    joined = (await replica.routed.call(joining)).reply
    assert isinstance(joined, JoinReply), joined
    sync = SyncGroup("default", joining.group_id, joined.member_id, joined.generation_id)
    synced = (await replica.routed.call(sync)).reply
    assert isinstance(synced, SyncReply)
    return synced


async def test_a_stopped_replica_costs_no_generation_and_no_error(
    tables: MemoryTables,
) -> None:
    async with a_replica(tables, "r2") as staying:
        async with a_replica(tables, "r1") as going:
            await settled([going, staying])
            group = a_group_of(going)
            leader = await a_stable_member(staying.routed, group)  # type: ignore[arg-type]
            stopping = asyncio.create_task(going.local.stop())
            answers: list[ErrorCode] = []
            beat = Heartbeat("default", group, leader.member_id, leader.generation_id)
            while not stopping.done() or len(answers) < 40:
                answers.append((await staying.routed.call(FetchOffsets("default", group))).reply.error)
                answers.append((await submitted(staying, beat)).reply.error)
            await stopping
        described = (await staying.routed.call(DescribeGroup("default", group))).reply

    assert set(answers) == {ErrorCode.NONE}
    assert isinstance(described, DescribeReply)
    assert described.generation_id == leader.generation_id


@asynccontextmanager
async def a_silent_peer(tables: MemoryTables) -> AsyncIterator[Replica]:
    """A replica that holds every shard, and from which no answer comes: as behind a network that is cut."""
    never = asyncio.Event()

    async def say_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await never.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    peer = Replica("silent", "http://silent", f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    store = FaultyStore(tables)
    await store.open(SHARDS)
    await store.register(peer, 60_000)
    await store.claim(range(SHARDS), peer.replica_id, peer.address, 60_000)
    yield peer
    never.set()
    server.close()


@pytest.mark.parametrize("is_submitted", [False, True])
@pytest.mark.parametrize("wait_ms", [0, 100])
async def test_a_member_whose_owner_is_silent_is_kept_alive_in_time(
    tables: MemoryTables, wait_ms: int, is_submitted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "ANSWER_MS", 3_600_000)
    clock = SystemClock()
    liveness = MemoryLiveness(clock.monotonic_ms)
    shard_id = shard_of("default", "g", SHARDS)
    await liveness.publish([ShardNews(shard_id, {("default", "g", "m"): LONG_MS}, ())])
    async with a_silent_peer(tables), a_replica(tables, "r1", liveness=liveness) as replica:
        await until(lambda: replica.local.directory.peer_of(shard_id) is not None)

        async with asyncio.timeout(SOON_S):
            beat = Heartbeat("default", "g", "m", 1, wait_ms=wait_ms)
            answer = await (submitted(replica, beat) if is_submitted else replica.routed.call(beat))

    assert answer.reply.error is ErrorCode.NONE
    (seen_ms_ago,) = await liveness.seen_ms_ago([(shard_id, ("default", "g", "m"))])
    assert seen_ms_ago is not None
    assert seen_ms_ago < LONG_MS
