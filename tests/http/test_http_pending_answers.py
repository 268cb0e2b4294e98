"""Answers to member calls that come later: the connection treats them as it treats any other answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from rota.api.http.app import create_app
from rota.observability.metrics import Metrics
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    CommitOffsets,
    CommitReply,
    Heartbeat,
    HeartbeatManyReply,
    HeartbeatReply,
    PartitionResult,
    Reply,
)
from tests.http.both_ways import (
    PATH,
    PLAIN,
    Both,
    Listener,
    a_request,
    as_new,
    compare,
    listening,
    scripted_both_ways,
    turns,
)
from tests.http.scripted import ScriptedCoordinator

pytestmark = pytest.mark.asyncio(loop_scope="module")

OFFSETS = PATH.replace("heartbeat", "offsets")
DONE = CommitReply(partitions=(PartitionResult("orders", 3),))


def a_commit(offset: int = 41, *headers: str, more: str = "") -> bytes:
    body = '{"member_id":"m-1","generation_id":7,"offsets":[{"topic":"orders","partition":3,"offset":%d%s}]}'
    return a_request((body % (offset, more)).encode(), *(headers or PLAIN), path=OFFSETS)


REPLIES: dict[str, Reply] = {
    "one that landed": DONE,
    "a part that did not": CommitReply(partitions=(PartitionResult("ü", 0, ErrorCode.OFFSET_METADATA_TOO_LARGE),)),
    "an old generation": CommitReply(ErrorCode.ILLEGAL_GENERATION, "it is at 8"),
    "no store": CommitReply(ErrorCode.COORDINATOR_NOT_AVAILABLE, "a write has an unknown outcome"),
    "another owner": CommitReply(ErrorCode.NOT_COORDINATOR, "the owner is elsewhere"),
}
FAST = {
    "a commit": a_commit(),
    "with all fields": a_commit(more=',"leader_epoch":3,"metadata":"ü","retention_time_ms":5'),
    "of no partition": a_request(b'{"member_id":"m","generation_id":7,"offsets":[]}', path=OFFSETS),
    "an administrator's": a_request(b'{"offsets":[{"topic":"t","partition":0,"offset":1}]}', path=OFFSETS),
}
BEATS: dict[str, bytes] = {
    "a heartbeat": a_request(),
    "a batch": a_request(b'{"members":[{"member_id":"m-1","generation_id":7},{"member_id":"m-2","generation_id":6}]}'),
}
BEAT_REPLIES: dict[str, Reply] = {
    "a member that lives": HeartbeatReply(generation_id=7, state="Stable"),
    "an old generation": HeartbeatReply(ErrorCode.ILLEGAL_GENERATION, "it is at 8"),
    "a silent owner": HeartbeatReply(ErrorCode.COORDINATOR_NOT_AVAILABLE, "it does not answer"),
    "another owner": HeartbeatReply(ErrorCode.NOT_COORDINATOR, "the owner is elsewhere"),
}
LATER = {"a commit": (FAST["a commit"], DONE)} | {
    name: (request, BEAT_REPLIES["a member that lives"]) for name, request in BEATS.items()
}
"""Requests with the reply that they get."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers() -> AsyncIterator[Both]:
    async with scripted_both_ways() as both:
        yield both


@pytest_asyncio.fixture(loop_scope="module")
async def both(servers: Both) -> Both:
    both = await as_new(servers)
    both.scripted.reply = DONE
    return both


def answers_in(received: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", received)]


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("name", FAST)
async def test_a_plain_commit_is_answered_fast(name: str, reply: str, both: Both) -> None:
    """Twice on one connection."""
    both.scripted.reply = REPLIES[reply]

    _, fast = await compare(both, FAST[name], FAST[name])

    assert fast == 2


@pytest.mark.parametrize("reply", BEAT_REPLIES)
@pytest.mark.parametrize("name", BEATS)
async def test_a_heartbeat_that_another_replica_answers_is_fast(name: str, reply: str, both: Both) -> None:
    """Three times on one connection."""
    both.scripted.reply, both.scripted.heartbeats_at_once = BEAT_REPLIES[reply], False

    _, fast = await compare(both, *[BEATS[name]] * 3)

    assert fast == 3


async def until(holds: Callable[[], bool]) -> None:
    """Let the server go on until `holds()`."""
    async with asyncio.timeout(20):
        while not holds():
            await turns(1)


async def parked(
    both: Both, listener: Listener, request: bytes = FAST["a commit"]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with a request under way."""
    both.scripted.reply = None
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(request)
    await until(lambda: bool(both.scripted.parked))
    return reader, writer


async def rest(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(20):
        return re.sub(rb"date: [^\r]*\r\n", b"", await reader.read())


async def test_requests_behind_a_commit_wait_for_its_answer(both: Both) -> None:
    """A heartbeat, and another commit: each takes its turn, whichever way it comes."""
    reader, writer = await parked(both, both.fast)
    both.scripted.reply = lambda r: HeartbeatReply(generation_id=7) if isinstance(r, Heartbeat) else DONE
    writer.write(a_request() + a_commit(42) + a_request(path="/healthz", method="GET"))
    await turns(20)
    asked = len(both.scripted.requests)
    both.scripted.answer_one_parked(CommitReply(ErrorCode.ILLEGAL_GENERATION, "it is at 8"))
    answers = b""
    while answers.count(b"HTTP/1.1 ") < 4:
        answers += await reader.readuntil(b"\r\n\r\n")
    writer.close()

    assert asked == 1
    assert answers_in(answers) == [412, 200, 200, 200]
    assert [type(request) for request in both.scripted.requests] == [CommitOffsets, Heartbeat, CommitOffsets]


async def test_heartbeats_before_a_commit_are_answered_at_once(both: Both) -> None:
    both.scripted.reply = lambda r: HeartbeatReply(generation_id=7) if isinstance(r, Heartbeat) else None
    reader, writer = await asyncio.open_connection("127.0.0.1", both.fast.port)
    writer.write(a_request() + a_commit())

    first = await reader.readuntil(b"}")
    both.scripted.answer_one_parked(DONE)
    second = await reader.readuntil(b"]")
    writer.close()

    assert b'"generation_id":7' in first
    assert b'"partitions":[' in second
    assert both.fast.ordinary == 0


async def test_a_connection_is_kept_while_a_commit_is_under_way(both: Both) -> None:
    listener = both.fast
    both.scripted.reply = DONE
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(a_commit())
    await reader.readuntil(b"]")
    both.scripted.reply = None
    writer.write(a_commit(42))
    await until(lambda: bool(both.scripted.parked))
    local = writer.get_extra_info("sockname")
    connections: Any = listener.server.server_state.connections
    connection = next(each for each in connections if each.client == local)

    assert connection.timeout_keep_alive_task is None
    both.scripted.answer_one_parked(DONE)
    answer = await reader.readuntil(b"]")
    connection.timeout_keep_alive_handler()

    assert b"HTTP/1.1 200" in answer
    assert await reader.read() == b',"revision":42,"epoch":3}'
    writer.close()


@pytest.mark.parametrize("name", LATER)
@pytest.mark.parametrize("way", ["fast", "plain"])
async def test_a_request_goes_on_when_its_client_is_gone(way: str, name: str, both: Both) -> None:
    """It is not cancelled, and it is counted."""
    listener: Listener = getattr(both, way)
    before = counted(both)
    request, reply = LATER[name]
    _, writer = await parked(both, listener, request)
    writer.transport.abort()
    await until(lambda: not listener.server.server_state.connections)

    both.scripted.answer_one_parked(of_all(reply) if name == "a batch" else reply)
    await turns(5)

    assert (both.scripted.cancelled, both.scripted.parked) == ([], {})
    assert counted(both) == before + 1


def of_all(reply: Reply) -> Reply:
    assert isinstance(reply, HeartbeatReply)
    return HeartbeatManyReply(generation_id=reply.generation_id, state=reply.state)


def counted(both: Both) -> int:
    """Requests that were answered without an error."""
    counts = re.findall(rb'rota_requests_total{code="NONE",operation="[a-zA-Z]+"} (\d+)', both.metrics.exposition())
    return sum(map(int, counts))


@pytest.mark.parametrize("name", ["a commit", "a heartbeat"])
async def test_a_server_that_stops_answers_a_request_first(name: str) -> None:
    """Both ways, and says that the connection ends."""
    received = []
    for fast in (False, True):
        scripted = ScriptedCoordinator()
        async with listening(create_app(scripted), fast=fast) as listener:
            await listener.exchange(a_request(path="/healthz", method="GET"))
            reader, writer = await parked(Both(Metrics(), listener, listener, scripted), listener, LATER[name][0])
            [connection] = listener.server.server_state.connections
            listener.server.stop()
            await until(partial(closes_with_its_answer, connection))
            scripted.answer_one_parked(LATER[name][1])
            received.append(await rest(reader))
            writer.close()

    assert received[0] == received[1]
    assert b"connection: close" in received[0]


def closes_with_its_answer(connection: Any) -> bool:
    return not connection.cycle.keep_alive


@pytest.mark.parametrize("request_bytes", [FAST["a commit"], BEATS["a heartbeat"]])
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_bug_of_ours_gets_the_answer_of_the_ordinary_way(
    at_once: bool, request_bytes: bytes, both: Both, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator raises, or replies with what cannot be rendered."""
    both.scripted.reply = ValueError("a bug") if at_once else CommitReply(partitions=(object(),))  # type: ignore[arg-type]

    answer, fast = await compare(both, request_bytes)

    assert (answers_in(answer), fast) == ([500, 200], 1)
    assert caplog.text.count("a request failed") == 2
