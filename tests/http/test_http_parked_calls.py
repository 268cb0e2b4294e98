"""Calls that park: joins, syncs and heartbeats that wait, answered by the connection and by the router."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from rota.api.http import connection as http_connection
from rota.api.http.app import create_app
from rota.api.http.member_calls import MAX_BODY_BYTES
from rota.observability.metrics import Metrics
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatReply,
    JoinedMember,
    JoinGroup,
    JoinReply,
    LeaveReply,
    LeftMember,
    Reply,
    SyncGroup,
    SyncReply,
)
from tests.http.both_ways import (
    LAST,
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

JOIN_PATH, SYNC_PATH, LEAVE_PATH = [PATH.replace("heartbeat", call) for call in ("join", "sync", "leave")]
PROTOCOLS = b'"protocol_type":"worker","protocols":[{"name":"range","metadata":"AAEC"}]'
ASSIGNMENTS = b'"assignments":[{"member_id":"m-1","assignment":"AAEC"},{"member_id":"\xc3\xbc","assignment":""}]'


def a_join(more: bytes = b"", *headers: str) -> bytes:
    return a_request(b"{%b%b}" % (PROTOCOLS, more), *(headers or PLAIN), path=JOIN_PATH)


def a_sync(more: bytes = b"", *headers: str) -> bytes:
    return a_request(b'{"member_id":"m-1","generation_id":7%b}' % more, *(headers or PLAIN), path=SYNC_PATH)


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
JOINS = {
    "a newcomer's": a_join(),
    "a member's": a_join(b',"member_id":"m-1","client_id":"c","wait_ms":9000,"last_generation_id":7'),
    "a static member's": a_join(b',"group_instance_id":"pod-1"'),
    "with all fields": a_join(
        b',"member_id":"","client_id":"\xc3\xbc","session_timeout_ms":9000,"rebalance_timeout_ms":0,"reason":"why",'
        b'"wait_ms":0,"group_instance_id":null'
    ),
    "of a consumer": a_request(b'{"protocol_type":"consumer","protocols":[]}', path=JOIN_PATH),
    "without metadata": a_request(b'{"protocol_type":"x","protocols":[{"name":"range"}]}', path=JOIN_PATH),
}
SYNCS = {
    "a follower's": a_sync(),
    "a leader's": a_sync(b"," + ASSIGNMENTS),
    "with all fields": a_sync(b',"protocol_type":"worker","protocol_name":"range","error":"why","wait_ms":99999'),
}
REFUSED: dict[str, Reply] = {
    "a member id first": JoinReply(ErrorCode.MEMBER_ID_REQUIRED, "join again", member_id="m-1"),
    "a full group": JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED, "it is full"),
    "another owner": JoinReply(ErrorCode.NOT_COORDINATOR, "the owner is elsewhere"),
    "no store": JoinReply(ErrorCode.COORDINATOR_NOT_AVAILABLE, "a write has an unknown outcome"),
}
JOIN_REPLIES: dict[str, Reply] = {"done": JOINED, "pending": JoinReply(pending=True, member_id="m-1"), **REFUSED}
SYNC_REPLIES: dict[str, Reply] = {
    "done": SYNCED,
    "pending": SyncReply(pending=True),
    "a rebalance": SyncReply(ErrorCode.REBALANCE_IN_PROGRESS, "join again"),
    "a failed assignment": SyncReply(ErrorCode.ASSIGNMENT_FAILED, "the leader could not"),
}
LEAVES = {
    "a member's": a_request(b'{"members":[{"member_id":"m-1"}]}', path=LEAVE_PATH),
    "of several": a_request(
        b'{"members":[{"member_id":"m-1","reason":"why","failed_unit":"docs/3"},{"group_instance_id":"pod-1"}]}',
        path=LEAVE_PATH,
    ),
    "of no member": a_request(b'{"members":[]}', path=LEAVE_PATH),
}
LEAVE_REPLIES: dict[str, Reply] = {
    "done": LeaveReply(
        members=(LeftMember("m-1", None, ErrorCode.NONE), LeftMember("", "ü", ErrorCode.UNKNOWN_MEMBER_ID))
    ),
    "another owner": LeaveReply(ErrorCode.NOT_COORDINATOR, "the owner is elsewhere"),
}
CALLS: dict[str, tuple[bytes, Reply]] = {
    "a join": (a_join(), JOINED),
    "a sync": (a_sync(), SYNCED),
    "a heartbeat": (a_wait(), STABLE),
}
"""Requests that park, with the reply that they get."""
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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers() -> AsyncIterator[Both]:
    async with scripted_both_ways() as both:
        yield both


@pytest_asyncio.fixture(loop_scope="module")
async def both(servers: Both) -> Both:
    return await as_new(servers)


@pytest.mark.parametrize("reply", JOIN_REPLIES)
@pytest.mark.parametrize("name", JOINS)
async def test_a_join_is_answered_fast(name: str, reply: str, both: Both) -> None:
    """Twice on one connection."""
    both.scripted.reply = JOIN_REPLIES[reply]

    _, fast = await compare(both, JOINS[name], JOINS[name])

    assert fast == 2


@pytest.mark.parametrize("reply", SYNC_REPLIES)
@pytest.mark.parametrize("name", SYNCS)
async def test_a_sync_is_answered_fast(name: str, reply: str, both: Both) -> None:
    both.scripted.reply = SYNC_REPLIES[reply]

    _, fast = await compare(both, SYNCS[name], SYNCS[name])

    assert fast == 2


@pytest.mark.parametrize("reply", LEAVE_REPLIES)
@pytest.mark.parametrize("name", LEAVES)
async def test_a_leave_is_answered_fast(name: str, reply: str, both: Both) -> None:
    both.scripted.reply = LEAVE_REPLIES[reply]

    _, fast = await compare(both, LEAVES[name], LEAVES[name])

    assert fast == 2


@pytest.mark.parametrize("name", ORDINARY)
async def test_an_unusual_call_takes_the_ordinary_way(name: str, both: Both) -> None:
    both.scripted.reply = JOINED

    _, fast = await compare(both, ORDINARY[name])

    assert fast == 0


# --- calls that are parked ---------------------------------------------------------------------------


async def parked(both: Both, listener: Listener, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with a request that waits."""
    both.scripted.reply = None
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(request)
    await both.scripted.until_parked(1)
    return reader, writer


async def until_closed(listener: Listener) -> None:
    async with asyncio.timeout(20):
        while listener.server.server_state.connections:
            await turns(1)


def answers_in(received: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", received)]


def waiters(both: Both) -> dict[str, float]:
    """The operations of calls that are parked now, as the metrics have them."""
    found = re.findall(rb'rota_waiters{operation="([a-zA-Z]+)"} ([0-9.]+)', both.metrics.exposition())
    return {name.decode(): float(value) for name, value in found if float(value)}


def counted(both: Both, code: str) -> int:
    """Requests that ended with this code."""
    pattern = rb'rota_requests_total{code="%b",operation="[a-zA-Z]+"} (\d+)' % code.encode()
    return sum(map(int, re.findall(pattern, both.metrics.exposition())))


async def rest(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(20):
        return re.sub(rb"date: [^\r]*\r\n", b"", await reader.read())


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

    assert answers_in(await rest(reader)) == [200] * 33
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

    assert answers_in(await rest(reader)) == [200] * (1 + behind) + [status]
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

    assert answers_in(await rest(reader)) == [200] * bool(before) + [status]
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

        assert answers_in(await rest(reader)) == [100] * expects + [200, 200]
        writer.close()


async def test_a_member_lives_on_one_connection(both: Both) -> None:
    """It joins, syncs, waits, and joins again."""
    replies: dict[type, Reply] = {JoinGroup: JOINED, SyncGroup: SYNCED, Heartbeat: STABLE}
    both.scripted.reply = lambda r: replies[type(r)]
    life = [a_join(), a_sync(), a_wait(), a_wait(), a_join(b',"member_id":"m-1"'), a_join(), a_sync(), a_wait()]

    answer, fast = await compare(both, *life)

    assert answers_in(answer) == [200] * 9
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
    assert answers_in(received[0]) == [503 if drains else 200]


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

    assert answers_in(received) == [503] * behind + [503]
    assert received.count(b"this replica is stopping") == 1
    assert [type(each) for each in scripted.requests] == [Heartbeat] * behind


def is_refused(connection: Any) -> bool:
    return bool(connection._refusal or connection._lingers)


def closes_later(connection: Any) -> bool:
    keeps: bool = connection.cycle.keep_alive
    return keeps
