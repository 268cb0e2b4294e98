"""Large messages of callers: the memory of those that wait is bounded by their bytes, not by their objects."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from rota.api.grpc.requests import requests_in
from rota.api.grpc.server import GrpcServer
from rota.api.grpc.turns import Turns
from rota.api.large import ON_THE_LOOP_BYTES, begin_reading
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import JoinGroup
from rota.v1 import coordinator_pb2 as pb
from rota.wire.batching import MAX_BATCH
from rota.wire.protobuf import Twin, parse
from rota.wire.rpcs import RPCS
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
    """And one message behind that, which is not parsed. Small calls between the two go on."""
    member, session = await a_stable_member(channel), SessionClient(channel)
    first = await session.send(commit=a_large_commit(member))
    assert (await session.ask(heartbeat=beats(member))).heartbeat.groups[0].error == "NONE"
    second = await session.send(commit=a_large_commit(member))
    [at_server] = server._sessions
    await until(lambda: at_server._has_received)

    assert list(at_server._open) == [first]
    may_read.set()
    assert await kinds_of(session, first, second) == ["committed"] * 2
    await session.close()


async def test_a_drain_answers_large_calls_that_wait(
    channel: Channel, server: GrpcServer, may_read: threading.Event
) -> None:
    member, session = await a_stable_member(channel), SessionClient(channel)
    calls = [await session.send(commit=a_large_commit(member)) for _ in range(2)]
    [at_server] = server._sessions
    await until(lambda: at_server._has_received)

    await server.drain()
    await session.next_news("drain")
    may_read.set()

    assert await kinds_of(session, *calls) == ["committed"] * 2
    assert await session.until_ended() is grpc.StatusCode.OK


async def test_a_large_call_that_is_cancelled_holds_up_nothing(
    channel: Channel, server: GrpcServer, may_read: threading.Event
) -> None:
    member, session = await a_stable_member(channel), SessionClient(channel)
    wrong = await session.send(commit=a_large_commit(member, generation_id=-7))
    await session.send(cancel=wrong)
    last = await session.send(commit=a_large_commit(member))
    may_read.set()

    assert await kinds_of(session, last) == ["committed"]
    [at_server] = server._sessions
    assert at_server._reading is None
    await session.close()


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


async def test_a_large_batch_is_parsed_as_its_turns_come(
    channel: Channel, server: GrpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    begins = asyncio.Event()

    def counted(kind: Any, data: bytes) -> Any:
        parsed.append(len(data))
        return parse(kind, data)

    async def wait(_turns: Turns, size: int) -> None:
        if parsed:
            await begins.wait()

    monkeypatch.setattr("rota.api.grpc.requests.parse", counted)
    monkeypatch.setattr(Turns, "try_begin", lambda _turns, _size: False)
    monkeypatch.setattr(Turns, "wait", wait)
    session = SessionClient(channel)
    await session.stream.write(a_batch_of_joins())
    await session.answer_to(1)

    assert len(parsed) == 1
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


def test_a_large_message_like_a_batch_is_refused() -> None:
    batch = a_batch_of_joins()
    size, found = requests_in(batch.SerializeToString())
    assert (size, [request for request, _ in found]) == (6, list(batch.batch))

    for name, data in broken(batch.SerializeToString()).items():
        with pytest.raises(RejectedRequest) as raised:
            list(requests_in(data)[1])
        assert raised.value.code is ErrorCode.INVALID_REQUEST, name


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
