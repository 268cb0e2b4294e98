"""The turns of the event loop in which messages of session streams begin."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
import pytest

from rota.api.grpc.calls import Context
from rota.api.grpc.receiving import SessionMessages
from rota.api.grpc.requests import requests_in
from rota.api.grpc.server import GrpcServer
from rota.api.grpc.session import WRITES_OF_A_TURN, Session
from rota.api.grpc.turns import BYTES_OF_A_TURN, Turns
from rota.v1 import coordinator_pb2 as pb
from rota.wire.batching import split_batch
from rota.wire.repeated import Repeated
from tests.grpc.clients import Channel, SessionClient, a_join, a_stable_member, beats
from tests.grpc.test_session_ends import ACaller
from tests.runtime.conftest import until

HALF = BYTES_OF_A_TURN // 2


async def turn_of_each(turns: Turns, sizes: list[int]) -> list[int]:
    """In which turn of the event loop each message begins, if all of them arrive in turn 0."""
    turn, began = 0, [-1] * len(sizes)

    async def arrive(number: int, size: int) -> None:
        if not turns.try_begin(size):
            await turns.wait(size)
        began[number] = turn

    arrivals = [asyncio.ensure_future(arrive(number, size)) for number, size in enumerate(sizes)]
    while not all(each.done() for each in arrivals):
        await asyncio.sleep(0)
        turn += 1
    return began


async def test_messages_of_a_turn_share_its_bytes() -> None:
    began = await turn_of_each(Turns(), [HALF] * 7)

    assert began == sorted(began), "in the order of their arrival"
    assert max(began.count(turn) for turn in began) == 2


async def test_a_message_that_is_larger_has_a_turn_by_itself() -> None:
    began = await turn_of_each(Turns(), [3 * BYTES_OF_A_TURN] * 3)

    assert len(set(began)) == 3


async def test_small_messages_wait_for_nothing() -> None:
    assert await turn_of_each(Turns(), [100] * 100) == [0] * 100


async def test_messages_of_ended_streams_hold_up_no_others() -> None:
    turns = Turns()
    assert turns.try_begin(BYTES_OF_A_TURN)
    gone = [asyncio.ensure_future(turns.wait(BYTES_OF_A_TURN)) for _ in range(50)]
    stays = asyncio.ensure_future(turns.wait(1))
    await asyncio.sleep(0)
    for each in gone:
        each.cancel()

    async with asyncio.timeout(5):
        await stays

    assert turns.try_begin(1)


class Messages:
    """Those of one session: all of them are there at once, and no more come until the call is ended."""

    def __init__(self, turns: Turns, messages: list[bytes]) -> None:
        self._turns = turns
        self.turns_of_answers = Turns()
        self.left = messages

    def turns_of(self, _data: bytes) -> Turns:
        return self._turns

    async def next(self) -> bytes:
        if not self.left:
            await asyncio.Event().wait()
        return self.left.pop()


@pytest.mark.thorough
async def test_the_loop_goes_round_while_streams_join(server: GrpcServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 messages of 1,000 joins arrive in one turn of the event loop. A renewal of the leases needs more turns."""
    joins = [pb.SessionRequest(call=n + 1, join=a_join(None, client_id="x" * 100)) for n in range(1_000)]
    batch = pb.SessionRequest(batch=joins).SerializeToString()
    begun_in_turn, begun = [0], dict[Session, list[int]]()
    begin = Session._begin

    def counted(session: Session, message: Any, data: bytes, repeated: Repeated | None) -> None:
        begun_in_turn[-1] += 1
        begun.setdefault(session, []).append(message.call)
        begin(session, message, data, repeated)

    monkeypatch.setattr(Session, "_begin", counted)
    turns, caller = Turns(), ACaller()
    caller.reads.set()
    sessions = [
        Session(
            server._calls, server._roster, cast(Context, caller), cast(SessionMessages, Messages(turns, [batch, batch]))
        )
        for _ in range(20)
    ]
    running = [asyncio.ensure_future(session.run()) for session in sessions]

    async with asyncio.timeout(30):
        while sum(begun_in_turn) < 40_000:
            await asyncio.sleep(0)
            begun_in_turn.append(0)

    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert max(begun_in_turn) <= BYTES_OF_A_TURN * len(joins) // len(batch)
    assert list(begun.values()) == [2 * [*range(1, 1_001)]] * 20, "in the order of the message"


class AReader(ACaller):
    """Reads all that a session writes, and notes it."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[list[pb.SessionEvent]] = []

    async def write(self, data: bytes) -> None:
        self.messages.append(list(split_batch(pb.SessionEvent.FromString(data))))


async def test_answers_go_out_together_while_many_streams_write(server: GrpcServer) -> None:
    """40 streams get an answer in each of 20 turns of the event loop; another one gets the answer to a heartbeat."""
    readers, turns = [AReader() for _ in range(41)], Turns()
    batching = pb.SessionRequest(call=1, options=pb.SessionOptions(batching=True)).SerializeToString()
    sessions = []
    for reader in readers:
        messages = Messages(turns, [batching])
        messages.turns_of_answers = turns
        sessions.append(Session(server._calls, server._roster, cast(Context, reader), cast(SessionMessages, messages)))
    running = [asyncio.ensure_future(session.run()) for session in sessions]
    async with asyncio.timeout(30):
        await until(lambda: all(reader.messages for reader in readers))
        for call in range(2, 22):
            for session in sessions[:-1]:
                session.push(pb.SessionEvent(call=call, joined=pb.JoinGroupResponse()))
            await asyncio.sleep(0)
        sessions[-1].push(pb.SessionEvent(call=2, heartbeat=pb.HeartbeatManyResponse()))
        await asyncio.sleep(0)
        assert readers[-1].messages[1:], "it does not wait behind the others"

        await until(lambda: sum(len(events) for reader in readers for events in reader.messages) == 41 + 20 * 40 + 1)
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    calls = [[event.call for events in reader.messages for event in events] for reader in readers[:-1]]
    assert calls == [[*range(1, 22)]] * 40
    assert sum(len(reader.messages) - 1 for reader in readers[:-1]) <= WRITES_OF_A_TURN * 20 + 40


@pytest.mark.thorough
async def test_a_heartbeat_waits_behind_no_joins(server: GrpcServer, channel: Channel) -> None:
    member, session, turns = await a_stable_member(channel), SessionClient(channel), server._receiver.turns
    for _ in range(1_000_000):
        turns.begin(BYTES_OF_A_TURN, lambda: None)

    await session.ask(options=pb.SessionOptions(leave_after_ms=1_800_000, batching=True, elections=True))
    answer = await session.ask(heartbeat=beats(member))

    assert answer.heartbeat.groups[0].error == "NONE"
    assert turns._waiting, "it came after those that had come before it"
    turns._waiting.clear()
    await session.close()


def test_heartbeats_go_before_calls_of_other_groups() -> None:
    """In one message, whose calls begin in many turns. Behind one of the same group they may be of the same member."""

    def heartbeat(*groups: str) -> pb.SessionRequest:
        of_groups = [pb.GroupHeartbeat(namespace="default", group_id=group) for group in groups]
        return pb.SessionRequest(heartbeat=pb.HeartbeatManyRequest(groups=of_groups))

    batch = [
        pb.SessionRequest(join=a_join(group_id="a")),
        heartbeat("b", "c"),
        heartbeat("c", "a"),
        pb.SessionRequest(cancel=1),
        pb.SessionRequest(commit=pb.CommitOffsetsRequest(namespace="other", group_id="c")),
        heartbeat("c"),
        pb.SessionRequest(leave=pb.LeaveGroupRequest(namespace="default", group_id="b")),
        heartbeat("b"),
        heartbeat("d"),
    ]
    for number, request in enumerate(batch):
        request.call = number + 1

    size, requests = requests_in(pb.SessionRequest(batch=batch).SerializeToString())

    assert size == len(batch)
    assert [request.call for request, _ in requests] == [2, 6, 9, 1, 3, 4, 5, 7, 8]


async def test_heartbeats_of_a_message_with_joins_are_answered_first(
    server: GrpcServer, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, session = await a_stable_member(channel), SessionClient(channel)
    await session.ask(options=pb.SessionOptions(batching=True))
    waited, begin = list[int](), asyncio.Event()

    async def wait(size: int) -> None:
        waited.append(size)
        if len(waited) > 1:
            await begin.wait()

    monkeypatch.setattr(server._receiver.turns, "try_begin", lambda _size: False)
    monkeypatch.setattr(server._receiver.turns, "wait", wait)
    joins = [pb.SessionRequest(call=n, join=a_join(f"i{n}", group_id=f"h{n}")) for n in range(2, 1_000)]
    await session.stream.write(
        pb.SessionRequest(batch=[*joins, pb.SessionRequest(call=1_000, heartbeat=beats(member))])
    )

    assert (await session.answer_to(1_000)).heartbeat.groups[0].error == "NONE"
    assert len(waited) == 2
    begin.set()
    assert (await session.answer_to(999)).HasField("joined")
    await session.close()


async def test_a_drain_answers_calls_that_wait_for_their_turn(
    server: GrpcServer, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, may_begin = asyncio.Event(), asyncio.Event()

    async def wait(_size: int) -> None:
        waits.set()
        await may_begin.wait()

    monkeypatch.setattr(server._receiver.turns, "try_begin", lambda _size: False)
    monkeypatch.setattr(server._receiver.turns, "wait", wait)
    session = SessionClient(channel)
    call = await session.send(join=a_join("i1"))
    await waits.wait()

    await server.drain()
    await session.next_news("drain")
    may_begin.set()

    assert (await session.answer_to(call)).HasField("joined")
    assert await session.until_ended() is grpc.StatusCode.OK
