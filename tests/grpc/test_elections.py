"""An election's next leader on a session stream: it is led into the next generation by the news of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

import rota
from rota.client.election import Election
from rota.protocol.fencing_token import fencing_token
from rota.protocol.messages import HeartbeatMany, JoinGroup
from rota.server.grpc.server import GrpcServer
from rota.server.runtime.coordinator import LocalCoordinator
from rota.v1 import coordinator_pb2 as pb
from tests.grpc.clients import Channel, G, SessionClient, a_join
from tests.runtime.conftest import until

CANDIDATE: dict[str, Any] = {"protocol_type": "leader", "protocols": [pb.Protocol(name="single", metadata=b"")]}


@pytest.fixture
async def streams(channel: Channel) -> AsyncIterator[list[SessionClient]]:
    clients = [SessionClient(channel) for _ in range(3)]
    yield clients
    for client in clients:
        await client.close()


async def candidates(streams: list[SessionClient]) -> list[pb.JoinGroupResponse]:
    """One on each stream, in one generation that the first one leads."""
    ids: list[str] = []
    joined: list[pb.JoinGroupResponse] = []
    for newcomer in streams:
        there = list(zip(streams, ids, strict=False))
        ids.append((await newcomer.ask(join=a_join(None, **CANDIDATE))).error.member_id)
        calls = [(newcomer, await newcomer.send(join=a_join(None, member_id=ids[-1], **CANDIDATE)))]
        for stream, member_id in reversed(there):
            await stream.next_news("rebalance")
            calls.insert(0, (stream, await stream.send(join=a_join(None, member_id=member_id, **CANDIDATE))))
        joined = [(await stream.answer_to(call)).joined for stream, call in calls]
    assert {each.leader_id for each in joined} == {ids[0]}
    return joined


def a_beat(member_id: str, generation_id: int) -> pb.HeartbeatManyRequest:
    beat = pb.MemberHeartbeat(member_id=member_id, generation_id=generation_id)
    return pb.HeartbeatManyRequest(groups=[pb.GroupHeartbeat(**G, members=[beat])])


def a_leave(member_id: str) -> pb.LeaveGroupRequest:
    return pb.LeaveGroupRequest(**G, members=[pb.LeavingMember(member_id=member_id)])


async def test_a_member_that_is_led_into_the_generation_is_in_it(streams: list[SessionClient]) -> None:
    first, second, third = await candidates(streams)
    await streams[0].ask(leave=a_leave(first.member_id))
    generation_id = (await streams[1].next_news("election")).generation_id

    answer = (await streams[1].ask(heartbeat=a_beat(second.member_id, generation_id))).heartbeat
    await streams[1].ask(leave=a_leave(second.member_id))

    assert (answer.groups[0].state, answer.groups[0].generation_id, len(answer.groups[0].errors)) == (
        "Stable",
        generation_id,
        0,
    )
    news = [await streams[2].next_news("election") for _ in range(2)]
    assert [[member.member_id for member in each.members] for each in news] == [[third.member_id]] * 2
    assert [each.generation_id for each in news] == [generation_id, generation_id + 1]


async def test_an_ordinary_rebalance_asks_all_to_join(streams: list[SessionClient]) -> None:
    first, second, _ = await candidates(streams)

    await streams[2].send(join=a_join("newcomer", **CANDIDATE))

    assert list((await streams[0].next_news("rebalance")).member_ids) == [first.member_id]
    assert list((await streams[1].next_news("rebalance")).member_ids) == [second.member_id]


def agreed(*elections: Election) -> set[int]:
    return {each.member.generation_id for each in elections}


async def test_the_next_candidate_of_the_sdk_leads(
    server: GrpcServer, coordinator: LocalCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    joins: list[str] = []
    waiting: set[tuple[str, int]] = set()
    submit, on_heartbeat = coordinator.submit, coordinator.try_heartbeat

    def submitting(request: Any, done: Any) -> Any:
        if isinstance(request, JoinGroup):
            joins.append(request.member_id)
        return submit(request, done)

    def beating(request: Any) -> Any:
        if isinstance(request, HeartbeatMany):
            waiting.update((beat.member_id, beat.generation_id) for beat in request.members)
        return on_heartbeat(request)

    def is_waiting(election: Election) -> bool:
        return (election.member.member_id, election.member.generation_id) in waiting

    monkeypatch.setattr(coordinator, "submit", submitting)
    monkeypatch.setattr(coordinator, "try_heartbeat", beating)
    async with AsyncExitStack() as stack, asyncio.timeout(10):
        clients = [await stack.enter_async_context(rota.connect(f"grpc+stream://{server.address}")) for _ in range(3)]
        leader = await clients[0].leader("writer").__aenter__()
        await until(lambda: leader.is_leader)
        others = [await stack.enter_async_context(client.leader("writer")) for client in clients[1:]]
        await until(lambda: all(map(is_waiting, [leader, *others])) and len(agreed(leader, *others)) == 1)
        generation_id = leader.member.generation_id
        joins.clear()

        await leader.__aexit__(None, None, None)
        await until(lambda: any(each.is_leader for each in others) and all(map(is_waiting, others)))

        assert agreed(*others) == {generation_id + 1}
        assert joins == []
        term = next(each.term for each in others if each.is_leader)
        assert term is not None
        assert (await term.verify()).fencing_token == term.fencing_token == fencing_token(generation_id + 1)
