"""Large messages of callers: the memory of those that wait is bounded by their bytes, not by their objects."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import JoinGroup
from rota.protocol.wire.batching import MAX_BATCH
from rota.protocol.wire.protobuf import Twin, parse
from rota.protocol.wire.rpcs import RPCS
from rota.server.grpc.receiving import Turns
from rota.server.grpc.server import GrpcServer
from rota.server.large import ON_THE_LOOP_BYTES, begin_reading
from rota.v1 import coordinator_pb2 as pb
from tests.grpc.clients import Channel, G, SessionClient, a_join, a_stable_member, beats
from tests.runtime.conftest import until

LARGE = b"x" * (ON_THE_LOOP_BYTES // 4)


def a_large_commit(joined: pb.JoinGroupResponse, generation_id: int = 1) -> pb.CommitOffsetsRequest:
    offsets = [pb.OffsetToCommit(topic="t", partition=n, offset=1, metadata="x" * 4_000) for n in range(100)]
    return pb.CommitOffsetsRequest(**G, member_id=joined.member_id, generation_id=generation_id, offsets=offsets)


def a_batch_of_joins(count: int = 6) -> pb.SessionRequest:
    """Large, of requests that are not."""
    joins = [
        a_join(f"i{n}", group_id=f"g{n}", protocols=[pb.Protocol(name="range", metadata=LARGE)]) for n in range(count)
    ]
    return pb.SessionRequest(batch=[pb.SessionRequest(call=n + 1, join=join) for n, join in enumerate(joins)])


@pytest.fixture
async def may_read() -> AsyncIterator[threading.Event]:
    """The thread of large messages reads none before this is set."""
    event = threading.Event()
    waiting = begin_reading(event.wait)
    yield event
    event.set()
    await waiting


async def kinds_of(session: SessionClient, *calls: int) -> list[str | None]:
    return [(await session.answer_to(call)).WhichOneof("event") for call in calls]


async def test_a_stream_has_one_large_call_that_is_not_read(
    channel: Channel, server: GrpcServer, may_read: threading.Event
) -> None:
    """The messages behind it are not received until then."""
    member, session = await a_stable_member(channel), SessionClient(channel)
    first = await session.send(commit=a_large_commit(member))
    [at_server] = server._sessions
    await until(lambda: at_server._is_beginning)
    second = asyncio.create_task(session.ask(heartbeat=beats(member)))
    for _ in range(100):
        await asyncio.sleep(0)

    assert not at_server._open
    assert not second.done()
    may_read.set()
    assert await kinds_of(session, first) == ["committed"]
    assert (await second).HasField("heartbeat")
    await session.close()


async def test_a_drain_answers_a_large_call_that_waits(
    channel: Channel, server: GrpcServer, may_read: threading.Event
) -> None:
    member, session = await a_stable_member(channel), SessionClient(channel)
    call = await session.send(commit=a_large_commit(member))
    [at_server] = server._sessions
    await until(lambda: at_server._is_beginning)

    await server.drain()
    await session.next_news("drain")
    may_read.set()

    assert await kinds_of(session, call) == ["committed"]
    assert await session.until_ended() is grpc.StatusCode.OK


@pytest.mark.thorough
async def test_a_refused_large_call_does_not_wait_for_the_collector(channel: Channel) -> None:
    """Its error has the frames that it was raised in, and these have the message."""
    member, session = await a_stable_member(channel), SessionClient(channel)
    gc.collect()
    gc.disable()
    try:
        assert (await session.ask(commit=a_large_commit(member, generation_id=-7))).error.code == "INVALID_REQUEST"

        # The thread lets go of it a moment after it has answered.
        await until(lambda: not any("generation_id" in detail for detail in refusals_in_memory()))
    finally:
        gc.enable()
    await session.close()


def refusals_in_memory() -> list[str]:
    return [each.detail for each in gc.get_objects() if isinstance(each, RejectedRequest)]


async def test_a_refusal_keeps_nothing_of_what_was_read() -> None:
    def read() -> None:
        parsed = LARGE * 2
        try:
            raise RejectedRequest(ErrorCode.INVALID_REQUEST, f"inner {len(parsed)}")
        except RejectedRequest:
            raise RejectedRequest(ErrorCode.INVALID_REQUEST, "outer") from None

    reading = begin_reading(read)
    await asyncio.wait((reading,))

    error = reading.exception()
    assert isinstance(error, RejectedRequest)
    assert error.detail == "outer"
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code)
        trace = trace.tb_next
    assert read.__code__ not in frames
    assert error.__context__ is None


async def test_a_batch_is_parsed_as_its_turns_come(
    channel: Channel, server: GrpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    begins = asyncio.Event()

    def counted(kind: Any, data: bytes) -> Any:
        parsed.append(len(data))
        return parse(kind, data)

    async def take(_turns: Turns, _size: int) -> None:
        if parsed:
            await begins.wait()

    monkeypatch.setattr("rota.server.grpc.session.parse", counted)
    monkeypatch.setattr(Turns, "take", take)
    session = SessionClient(channel)
    await session.stream.write(a_batch_of_joins())
    await session.answer_to(1)

    assert len(parsed) == 2, "once for its kind, and once more where it is read"
    begins.set()
    assert [(await session.answer_to(call)).WhichOneof("event") for call in range(2, 7)] == ["joined"] * 5
    assert max(parsed) < 2 * len(LARGE)
    await session.close()


def broken(message: bytes) -> dict[str, bytes]:
    """Large messages that are like batches."""
    other = pb.SessionRequest(cancel=1).SerializeToString()
    nested = pb.SessionRequest(batch=[pb.SessionRequest.FromString(message)]).SerializeToString()
    return {
        "another field behind it": message + other,
        "another field before it": other + message,
        "a number before it": pb.SessionRequest(call=1).SerializeToString() + message,
        "nested": nested,
        "cut off": message[:-1],
        "a size without an end": message + message[:1] + b"\xff" * 8,
        "a tag alone": message + message[:1],
        "too many": message + (message[:1] + b"\x00") * MAX_BATCH,
        "an unknown field before it": b"\xf8\x01\x01" + message,
    }


@pytest.mark.parametrize("name", broken(a_batch_of_joins().SerializeToString()))
async def test_a_message_like_a_batch_ends_the_stream(session: SessionClient, name: str) -> None:
    message = broken(a_batch_of_joins().SerializeToString())[name]
    raw: Any = session.stream

    raw._request_serializer = None
    await raw.write(message)

    assert await session.until_ended() is grpc.StatusCode.INVALID_ARGUMENT


def test_items_of_a_list_that_is_too_long_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight MiB may have four million."""
    read, document = list[Any](), Twin.document

    def noted(shape: Twin, message: Any, limits: Limits) -> dict[str, Any]:
        read.append(message)
        return document(shape, message, limits)

    monkeypatch.setattr(Twin, "document", noted)
    message = a_join(protocols=[pb.Protocol(name="p")] * 65)

    with pytest.raises(RejectedRequest) as raised:
        RPCS[JoinGroup].read_request(message, Limits(), host="")

    assert (raised.value.code, raised.value.detail) == (
        ErrorCode.PAYLOAD_TOO_LARGE,
        "protocols must have at most 64 items",
    )
    assert read == [message]
