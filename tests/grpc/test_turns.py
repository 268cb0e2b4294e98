"""The turns of the event loop in which calls of session streams begin."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from rota.server.grpc.receiving import BYTES_OF_A_TURN, Turns
from rota.server.grpc.server import GrpcServer
from rota.server.grpc.session import Session
from rota.v1 import coordinator_pb2 as pb
from tests.grpc.clients import Channel, SessionClient, a_join, a_stable_member, beats
from tests.grpc.test_session_ends import ACaller, a_session
from tests.runtime.conftest import until

HALF = BYTES_OF_A_TURN // 2


async def turn_of_each(turns: Turns, sizes: list[int]) -> list[int]:
    """In which turn of the event loop each message begins, if all of them arrive in turn 0."""
    turn, began = 0, [-1] * len(sizes)

    async def arrive(number: int, size: int) -> None:
        await turns.take(size)
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
    await turns.take(BYTES_OF_A_TURN)
    gone = [asyncio.ensure_future(turns.take(BYTES_OF_A_TURN)) for _ in range(50)]
    for each in gone:
        each.cancel()

    async with asyncio.timeout(5):
        await turns.take(1)

    await asyncio.wait(gone)
    assert not turns.is_over


@pytest.mark.thorough
async def test_the_loop_goes_round_while_streams_join(server: GrpcServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 messages of 1,000 joins arrive in one turn of the event loop. A renewal of the leases needs more turns."""
    joins = [pb.SessionRequest(call=n + 1, join=a_join(None, client_id="x" * 100)) for n in range(1_000)]
    batch = pb.SessionRequest(batch=joins).SerializeToString()
    begun_in_turn, begun = [0], dict[Session, list[int]]()
    begin = Session._begin

    async def counted(session: Session, data: bytes) -> None:
        begun_in_turn[-1] += 1
        begun.setdefault(session, []).append(pb.SessionRequest.FromString(data).call)
        await begin(session, data)

    monkeypatch.setattr(Session, "_begin", counted)
    callers = [ACaller(batch, batch) for _ in range(20)]
    for caller in callers:
        caller.reads.set()
    running = [asyncio.ensure_future(a_session(server, caller).run()) for caller in callers]

    async with asyncio.timeout(60):
        while sum(begun_in_turn) < 40_000:
            await asyncio.sleep(0)
            begun_in_turn.append(0)

    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert max(begun_in_turn) <= 1 + BYTES_OF_A_TURN // joins[0].ByteSize()
    assert list(begun.values()) == [2 * [*range(1, 1_001)]] * 20, "in the order of the message"


async def test_a_heartbeat_waits_behind_no_joins(server: GrpcServer, channel: Channel) -> None:
    member, session, other = await a_stable_member(channel), SessionClient(channel), SessionClient(channel)
    server._receiver.turns._left = 0
    join = await other.send(join=a_join("i2", group_id="h"))

    await session.ask(options=pb.SessionOptions(leave_after_ms=1_800_000))
    answer = await session.ask(heartbeat=beats(member))

    assert answer.heartbeat.groups[0].error == "NONE"
    assert join not in other.answers, "it came after the one that had come before it"
    server._receiver.turns._left = BYTES_OF_A_TURN
    assert (await other.answer_to(join)).HasField("joined")
    await session.close()
    await other.close()


async def test_a_drain_answers_calls_that_wait_for_their_turn(server: GrpcServer, channel: Channel) -> None:
    server._receiver.turns._left = 0
    session = SessionClient(channel)
    call = await session.send(join=a_join("i1"))
    await until(lambda: any(each._is_beginning for each in server._sessions))

    await server.drain()
    await session.next_news("drain")
    server._receiver.turns._left = BYTES_OF_A_TURN

    assert (await session.answer_to(call)).HasField("joined")
    assert await session.until_ended() is grpc.StatusCode.OK
