"""Calls whose answers come later, by the connection and by the router: those that park, and those that go on."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    CommitOffsets,
    CommitReply,
    Heartbeat,
    HeartbeatManyReply,
    HeartbeatReply,
    JoinedMember,
    JoinGroup,
    JoinReply,
    LeaveReply,
    LeftMember,
    PartitionResult,
    Reply,
    SyncGroup,
    SyncReply,
)
from rota.server.http import connection as http_connection
from rota.server.http.app import create_app
from rota.server.http.connection import HttpConnection
from rota.server.http.member_calls import MAX_BODY_BYTES
from rota.server.observability.metrics import Metrics
from tests.http.both_ways import (
    LAST,
    PATH,
    PLAIN,
    Both,
    Listener,
    a_request,
    compare,
    listening,
    parked,
    rest,
    statuses_in,
    turns,
)
from tests.http.scripted import ScriptedCoordinator

pytestmark = pytest.mark.asyncio(loop_scope="module")

JOIN_PATH, SYNC_PATH, LEAVE_PATH = [PATH.replace("heartbeat", call) for call in ("join", "sync", "leave")]
PROTOCOLS = b'"protocol_type":"worker","protocols":[{"name":"range","metadata":"AAEC"}]'
OFFSETS = PATH.replace("heartbeat", "offsets")
ASSIGNMENTS = b'"assignments":[{"member_id":"m-1","assignment":"AAEC"},{"member_id":"\xc3\xbc","assignment":""}]'


def a_join(more: bytes = b"", *headers: str) -> bytes:
    return a_request(b"{%b%b}" % (PROTOCOLS, more), *(headers or PLAIN), path=JOIN_PATH)


def a_sync(more: bytes = b"", *headers: str) -> bytes:
    return a_request(b'{"member_id":"m-1","generation_id":7%b}' % more, *(headers or PLAIN), path=SYNC_PATH)


def a_commit(offset: int = 41, *, more: str = "") -> bytes:
    body = '{"member_id":"m-1","generation_id":7,"offsets":[{"topic":"orders","partition":3,"offset":%d%s}]}'
    return a_request((body % (offset, more)).encode(), *PLAIN, path=OFFSETS)


def a_wait(*headers: str) -> bytes:
    return a_request(b'{"member_id":"m-1","generation_id":7,"wait_ms":9000}', *(headers or PLAIN))


JOINED = JoinReply(
    member_id="m-1",
    generation_id=8,
    protocol_type="worker",
    protocol_name="range",
    leader_id="m-1",
    members=(JoinedMember("m-1", None, b"\x00\x01"), JoinedMember("ü", "pod-1", b"")),
    fencing_token=9,
)
SYNCED = SyncReply(generation_id=8, protocol_type="worker", protocol_name="range", assignment=b"\xff", fencing_token=9)
STABLE = HeartbeatReply(generation_id=7, state="Stable")
JOINS = [
    a_join(),
    a_join(b',"member_id":"m-1","client_id":"c","wait_ms":9000,"last_generation_id":7'),
    a_join(b',"group_instance_id":"pod-1"'),
    a_join(
        b',"member_id":"","client_id":"\xc3\xbc","session_timeout_ms":9000,"rebalance_timeout_ms":0,"reason":"why",'
        b'"wait_ms":0,"group_instance_id":null'
    ),
    a_request(b'{"protocol_type":"consumer","protocols":[]}', path=JOIN_PATH),
    a_request(b'{"protocol_type":"x","protocols":[{"name":"range"}]}', path=JOIN_PATH),
]
JOIN_REPLIES: list[Reply] = [
    JoinReply(pending=True, member_id="m-1"),
    JoinReply(ErrorCode.MEMBER_ID_REQUIRED, "join again", member_id="m-1"),
    JoinReply(ErrorCode.NOT_COORDINATOR, "the owner is elsewhere"),
    JoinReply(ErrorCode.COORDINATOR_NOT_AVAILABLE, "a write has an unknown outcome"),
]
SYNCS = [
    a_sync(),
    a_sync(b"," + ASSIGNMENTS),
    a_sync(b',"protocol_type":"worker","protocol_name":"range","error":"why","wait_ms":99999'),
]
SYNC_REPLIES: list[Reply] = [
    SyncReply(pending=True),
    SyncReply(ErrorCode.ASSIGNMENT_FAILED, "the leader could not"),
]
LEFT = LeaveReply(members=(LeftMember("m-1", None, ErrorCode.NONE), LeftMember("", "ü", ErrorCode.UNKNOWN_MEMBER_ID)))
LEAVES = [
    a_request(
        b'{"members":[{"member_id":"m-1","reason":"why","failed_unit":"docs/3"},{"group_instance_id":"pod-1"}]}',
        path=LEAVE_PATH,
    ),
    a_request(b'{"members":[]}', path=LEAVE_PATH),
]
DONE = CommitReply(partitions=(PartitionResult("orders", 3),))
COMMITS = [
    a_commit(),
    a_commit(more=',"leader_epoch":3,"metadata":"ü","retention_time_ms":5'),
    a_request(b'{"offsets":[{"topic":"t","partition":0,"offset":1}]}', path=OFFSETS),
]
COMMIT_REPLIES: list[Reply] = [
    CommitReply(partitions=(PartitionResult("ü", 0, ErrorCode.OFFSET_METADATA_TOO_LARGE),)),
    CommitReply(ErrorCode.ILLEGAL_GENERATION, "it is at 8"),
]
ANSWERED_FAST: list[tuple[bytes, Reply]] = [
    *((request, JOINED) for request in JOINS),
    *((a_join(), reply) for reply in JOIN_REPLIES),
    *((request, SYNCED) for request in SYNCS),
    *((a_sync(), reply) for reply in SYNC_REPLIES),
    *((request, LEFT) for request in LEAVES),
    *((request, DONE) for request in COMMITS),
    *((a_commit(), reply) for reply in COMMIT_REPLIES),
]
BATCH = a_request(b'{"members":[{"member_id":"m-1","generation_id":7},{"member_id":"m-2","generation_id":6}]}')
BEAT_REPLIES: list[Reply] = [STABLE, HeartbeatReply(ErrorCode.COORDINATOR_NOT_AVAILABLE, "it does not answer")]
CALLS: dict[str, tuple[bytes, Reply]] = {
    "a join": (a_join(), JOINED),
    "a sync": (a_sync(), SYNCED),
    "a heartbeat": (a_wait(), STABLE),
}
"""Requests that park, with the reply that they get."""
LATER: dict[str, tuple[bytes, Reply]] = {
    "a commit": (a_commit(), DONE),
    "a heartbeat": (a_request(), STABLE),
    "a batch": (BATCH, HeartbeatManyReply(generation_id=7, state="Stable")),
}
"""Requests that go on without their client, with the reply that they get."""
OPERATIONS = {"a join": "groupsJoin", "a sync": "groupsSync", "a heartbeat": "heartbeat"}
"""By which the metrics count those that are parked."""
ORDINARY = {
    "a join without protocols": a_request(b'{"protocol_type":"worker"}', path=JOIN_PATH),
    "a join of an unknown field": a_join(b',"member":"m"'),
    "a join of too long a reason": a_join(b',"reason":"%b"' % (b"x" * 2_000)),
    "a join of no base64": a_join().replace(b"AAEC", b"AAE-"),
    "a join with a query": a_request(b"{}", path=JOIN_PATH + "?wait_ms=1"),
    "a join by PUT": a_request(b"{}", path=JOIN_PATH, method="PUT"),
    "a join with a note": a_join(b"", *PLAIN, "Rota-Note: because"),
    "a join, and no more": a_join(b"", *PLAIN, "Connection: close"),
    "a join that is no JSON": a_join(b"]"),
    "a large join": a_join(b" " * MAX_BODY_BYTES),
    "a sync without a generation": a_request(b'{"member_id":"m-1"}', path=SYNC_PATH),
    "a sync of an unknown field": a_sync(b',"generation":7'),
    "a sync with a query": a_request(b"{}", path=SYNC_PATH + "?"),
    "a leave without members": a_request(b"{}", path=LEAVE_PATH),
    "a leave of no name": a_request(b'{"members":[{}]}', path=LEAVE_PATH),
    "a sync of a page": a_sync(b"", *PLAIN, "Origin: http://evil.example"),
}


BROKEN = {
    "no HTTP": (b"no HTTP\r\n\r\n", 400),
    "fields": (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 300, 431),
    "a long head": (b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000, 431),
    "a chunk": (b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    "a URL": (b"GET http://a:b:c/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "a tunnel": (b"CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
}
"""Bytes that are refused behind another request, and how."""


@pytest.mark.parametrize(("request_bytes", "reply"), ANSWERED_FAST)
async def test_a_plain_call_is_answered_fast(request_bytes: bytes, reply: Reply, both: Both) -> None:
    """Twice on one connection."""
    both.scripted.reply = reply

    _, fast = await compare(both, request_bytes, request_bytes)

    assert fast == 2


@pytest.mark.parametrize("reply", BEAT_REPLIES)
@pytest.mark.parametrize("request_bytes", [a_request(), BATCH])
async def test_a_heartbeat_that_another_replica_answers_is_fast(request_bytes: bytes, reply: Reply, both: Both) -> None:
    both.scripted.reply, both.scripted.heartbeats_at_once = reply, False

    _, fast = await compare(both, request_bytes, request_bytes)

    assert fast == 2


@pytest.mark.parametrize("name", ORDINARY)
async def test_an_unusual_call_takes_the_ordinary_way(name: str, both: Both) -> None:
    both.scripted.reply = JOINED

    _, fast = await compare(both, ORDINARY[name])

    assert fast == 0


# --- calls that are parked ---------------------------------------------------------------------------


async def until_closed(listener: Listener) -> None:
    async with asyncio.timeout(20):
        while listener.server.server_state.connections:
            await turns(1)


def waiters(both: Both) -> dict[str, float]:
    """The operations of calls that are parked now, as the metrics have them."""
    found = re.findall(rb'rota_waiters{operation="([a-zA-Z]+)"} ([0-9.]+)', both.metrics.exposition())
    return {name.decode(): float(value) for name, value in found if float(value)}


def counted(both: Both, code: str) -> int:
    """Requests that ended with this code."""
    pattern = rb'rota_requests_total{code="%b",operation="[a-zA-Z]+"} (\d+)' % code.encode()
    return sum(map(int, re.findall(pattern, both.metrics.exposition())))


async def test_large_answers_are_made_as_the_client_reads_them(both: Both) -> None:
    """One that reads nothing would make us keep an answer for each request that fits into one read."""
    both.scripted.reply = SyncReply(generation_id=7, assignment=bytes(256 * 1024))
    reader, writer = await asyncio.open_connection("127.0.0.1", both.fast.port)
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # typeshed leaves it out of WriteTransport

    writer.write(a_sync() * 32)
    async with asyncio.timeout(20):
        while not both.scripted.requests:
            await turns(1)
    await turns(50)
    made = len(both.scripted.requests)
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    writer.write(LAST)

    assert statuses_in(await rest(reader)) == [200] * 33
    assert made < 32
    writer.close()


@pytest.mark.parametrize("name", CALLS)
async def test_an_answer_that_comes_later_is_the_same(name: str, both: Both) -> None:
    """The call counts as parked until then, and the connection is kept behind it."""
    request, reply = CALLS[name]
    received, waited = [], []
    for listener in (both.plain, both.fast):
        reader, writer = await parked(both, listener, request)
        waited.append(waiters(both))
        both.scripted.answer_one_parked(reply)
        await both.scripted.until_parked(0)
        writer.write(LAST)
        received.append(await rest(reader))
        writer.close()

    assert received[0] == received[1]
    assert waited == [{OPERATIONS[name]: 1.0}] * 2
    assert waiters(both) == {}
    assert both.plain.ordinary - both.fast.ordinary == 1


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("way", ["fast", "plain"])
async def test_a_call_is_cancelled_when_its_client_is_gone(way: str, name: str, both: Both) -> None:
    listener: Listener = getattr(both, way)
    gone = counted(both, "GONE")
    _, writer = await parked(both, listener, CALLS[name][0])

    writer.transport.abort()
    await both.scripted.until_cancelled(1)
    async with asyncio.timeout(20):
        while counted(both, "GONE") == gone:
            await turns(1)

    assert [type(request) for request in both.scripted.cancelled] == [type(both.scripted.requests[0])]
    assert counted(both, "GONE") == gone + 1
    assert waiters(both) == {}


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("way", ["fast", "plain"])
async def test_a_connection_that_is_reset_leaves_no_timer(way: str, waits: bool, both: Both) -> None:
    """That of keep-alive would keep the connection, and for ever where it finds a call under way."""
    listener: Listener = getattr(both, way)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(a_request())
    await reader.readuntil(b"}")
    connection: Any = next(iter(listener.server.server_state.connections))
    if waits:
        both.scripted.reply = None
        writer.write(a_wait())
        await both.scripted.until_parked(1)

    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    await until_closed(listener)

    assert connection.timeout_keep_alive_task is None
    await both.scripted.until_parked(0)


@pytest.mark.parametrize("way", ["fast", "plain"])
@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize("name", BROKEN)
async def test_bytes_are_refused_behind_all_answers(name: str, behind: int, way: str, both: Both) -> None:
    """The refusal would be read as the answer to the call that is under way."""
    broken, status = BROKEN[name]
    reader, writer = await parked(both, getattr(both, way), a_wait())
    writer.write(a_wait() * behind + broken)
    await turns(20)

    for _ in range(1 + behind):
        await both.scripted.until_parked(1)
        both.scripted.answer_one_parked(STABLE)
        await turns(1)

    assert statuses_in(await rest(reader)) == [200] * (1 + behind) + [status]
    writer.close()


@pytest.mark.parametrize("way", ["fast", "plain"])
@pytest.mark.parametrize("before", [b"", LAST.replace(b"Connection: close\r\n", b""), a_request()], ids=len)
@pytest.mark.parametrize("name", BROKEN)
async def test_bytes_are_refused_on_a_connection_in_use(name: str, before: bytes, way: str, both: Both) -> None:
    broken, status = BROKEN[name]
    reader, writer = await asyncio.open_connection("127.0.0.1", getattr(both, way).port)
    for sent in (before, broken):
        writer.write(sent)
        await turns(20)

    assert statuses_in(await rest(reader)) == [200] * bool(before) + [status]
    writer.close()


@pytest.mark.parametrize("way", ["fast", "plain"])
async def test_a_body_behind_an_answer_keeps_its_time(way: str, both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body arrives that is not the rest of the request which was answered, and its client may wait for a sign."""
    monkeypatch.setattr(http_connection, "REST_DEADLINE_SECONDS", 0)
    head, body = a_wait(*PLAIN, "Expect: 100-continue").split(b"\r\n\r\n")
    for expects in (True, False):
        reader, writer = await parked(both, getattr(both, way), a_wait())
        writer.write((head if expects else head.replace(b"Expect", b"X")) + b"\r\n\r\n" + body[:3])
        await turns(20)
        both.scripted.answer_one_parked(STABLE)
        await reader.readuntil(b"}")
        await turns(20)
        both.scripted.reply = STABLE
        writer.write(body[3:] + LAST)

        assert statuses_in(await rest(reader)) == [100] * expects + [200, 200]
        writer.close()


async def test_a_member_lives_on_one_connection(both: Both) -> None:
    """It joins, syncs, waits, and joins again."""
    replies: dict[type, Reply] = {JoinGroup: JOINED, SyncGroup: SYNCED, Heartbeat: STABLE}
    both.scripted.reply = lambda r: replies[type(r)]
    life = [a_join(), a_sync(), a_wait(), a_wait(), a_join(b',"member_id":"m-1"'), a_join(), a_sync(), a_wait()]

    answer, fast = await compare(both, *life)

    assert statuses_in(answer) == [200] * 9
    assert fast == 8


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("drains", [False, True])
async def test_a_server_that_stops_ends_a_parked_call(drains: bool, name: str) -> None:
    """Both ways: by its answer where there is one, or by the coordinator's drain; then the connection ends."""
    received = []
    for fast in (False, True):
        scripted = ScriptedCoordinator()
        async with listening(create_app(scripted), fast=fast) as listener:
            await listener.exchange(a_request(path="/healthz", method="GET"))
            reader, writer = await parked(Both(Metrics(), listener, listener, scripted), listener, CALLS[name][0])
            [connection] = listener.server.server_state.connections
            listener.server.stop()
            async with asyncio.timeout(20):
                while closes_later(connection):
                    await turns(1)
            if drains:
                await scripted.drain()
            else:
                scripted.answer_one_parked(CALLS[name][1])
            received.append(await rest(reader))
            writer.close()

    assert received[0] == received[1]
    assert b"connection: close" in received[0]
    assert statuses_in(received[0]) == [503 if drains else 200]


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("behind", [False, True])
async def test_a_server_that_stops_waits_for_no_body(behind: bool, fast: bool) -> None:
    """Its request is refused, and the answers before it are those of their own requests."""
    scripted = ScriptedCoordinator()
    async with listening(create_app(scripted), fast=fast) as listener:
        await listener.exchange(a_request(path="/healthz", method="GET"))
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        scripted.reply = None
        writer.write(a_wait() * behind + a_request()[:-1])
        await turns(20)
        [connection] = listener.server.server_state.connections
        listener.server.stop()
        async with asyncio.timeout(20):
            while not is_refused(connection):
                await turns(1)
        await scripted.drain()

        received = await rest(reader)
        writer.close()

    assert statuses_in(received) == [503] * behind + [503]
    assert received.count(b"this replica is stopping") == 1
    assert [type(each) for each in scripted.requests] == [Heartbeat] * behind


def is_refused(connection: Any) -> bool:
    return bool(connection._refusal or connection._lingers)


def closes_later(connection: Any) -> bool:
    keeps: bool = connection.cycle.keep_alive
    return keeps


# --- calls that go on without their client ------------------------------------------------------


async def test_requests_behind_a_commit_wait_for_its_answer(both: Both) -> None:
    """A heartbeat, and another commit: each takes its turn, whichever way it comes."""
    reader, writer = await parked(both, both.fast, a_commit())
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
    assert statuses_in(answers) == [412, 200, 200, 200]
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
    await both.scripted.until_parked(1)
    local = writer.get_extra_info("sockname")
    connections: Any = listener.server.server_state.connections
    connection = next(each for each in connections if each.client == local)

    connection.timeout_keep_alive_handler()
    assert connection.timeout_keep_alive_task is None
    connection._keep_alive_until = 0
    both.scripted.answer_one_parked(DONE)
    answer = await reader.readuntil(b"]")
    connection.timeout_keep_alive_handler()

    assert b"HTTP/1.1 200" in answer
    assert await reader.read() == b',"revision":42,"epoch":3}'
    writer.close()


@pytest.mark.parametrize("close", [HttpConnection.close_in_order, HttpConnection._close])
async def test_a_connection_that_is_closed_in_the_same_turn_gives_its_answers(
    close: Callable[[HttpConnection], None], both: Both
) -> None:
    reader, writer, connection = await _connected(both)
    both.scripted.reply = STABLE

    connection.data_received(a_request())
    close(connection)

    assert b'"state":"Stable"' in await reader.read()
    writer.close()


async def _connected(both: Both) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, HttpConnection]:
    """A client's connection, and the server's end of it."""
    both.scripted.reply = STABLE
    reader, writer = await asyncio.open_connection("127.0.0.1", both.fast.port)
    writer.write(a_request())
    await reader.readuntil(b"}")
    connections: Any = both.fast.server.server_state.connections
    return reader, writer, next(each for each in connections if each.client == writer.get_extra_info("sockname"))


@pytest.mark.parametrize("name", LATER)
@pytest.mark.parametrize("way", ["fast", "plain"])
async def test_a_request_goes_on_when_its_client_is_gone(way: str, name: str, both: Both) -> None:
    """It is not cancelled, and it is counted."""
    listener: Listener = getattr(both, way)
    before = counted(both, "NONE")
    request, reply = LATER[name]
    _, writer = await parked(both, listener, request)
    writer.transport.abort()
    await until_closed(listener)

    both.scripted.answer_one_parked(reply)
    await turns(5)

    assert (both.scripted.cancelled, both.scripted.parked) == ([], {})
    assert counted(both, "NONE") == before + 1


@pytest.mark.parametrize("request_bytes", [a_commit(), a_request()])
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_bug_of_ours_gets_the_answer_of_the_ordinary_way(
    at_once: bool, request_bytes: bytes, both: Both, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator raises, or replies with what cannot be rendered."""
    both.scripted.reply = ValueError("a bug") if at_once else CommitReply(partitions=(object(),))  # type: ignore[arg-type]

    answer, fast = await compare(both, request_bytes)

    assert (statuses_in(answer), fast) == ([500, 200], 1)
    assert caplog.text.count("a request failed") == 2
