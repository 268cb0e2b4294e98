"""The connection answers plain member calls, and every answer is that of the router, byte for byte."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from itertools import count, pairwise
from random import Random

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import TracerProvider

from rota.core.replica.ports import Answer
from rota.protocol import tracing
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import FenceReply, Heartbeat, HeartbeatMany, HeartbeatReply, Reply
from rota.server.http.connection import HttpConnection
from rota.server.http.member_calls import MAX_BODY_BYTES
from rota.server.observability.otel import OtelSpans
from tests.fuzz.mutations import mutated
from tests.http.both_ways import (
    BEAT,
    PATH,
    PLAIN,
    Both,
    a_request,
    compare,
    scripted_both_ways,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

BATCH = b'{"members":[{"member_id":"m-1","generation_id":7},{"member_id":"\xc3\xbc\\"","generation_id":7}]}'
LIMITS = Limits(request_max_bytes=2 * MAX_BODY_BYTES)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers() -> AsyncIterator[Both]:
    async with scripted_both_ways(LIMITS) as both:
        yield both


ANSWERED_FAST = {
    "a heartbeat": a_request(),
    "a static member's": a_request(b'{"member_id":"m-1","generation_id":7,"group_instance_id":"pod-1"}'),
    "a wait": a_request(b'{"member_id":"m-1","generation_id":7,"wait_ms":1}'),
    "a static member's wait": a_request(b'{"member_id":"m","generation_id":7,"group_instance_id":"p","wait_ms":99999}'),
    "a batch": a_request(BATCH),
    "with spaces in the body": a_request(b' {"generation_id" : 7 , "member_id" : "m\\u00fc" } \n'),
    "with headers that mean nothing": a_request(
        BEAT, *PLAIN, "User-Agent: x", "Accept: */*", "X-Forwarded-For: 6.6.6.6"
    ),
    "with headers in other cases": a_request(BEAT, "HOST: localhost", "content-type: application/json"),
    "kept alive": a_request(BEAT, *PLAIN, "Connection: Keep-Alive"),
    "with an empty line before it": b"\r\n" + a_request(),
    "a long name": a_request(path=f"/v1/namespaces/{'n' * 249}/groups/{':' * 249}/heartbeat"),
    "with a token that nobody asks for": a_request(BEAT, *PLAIN, "Authorization: Bearer x"),
    "a large batch": a_request(b'{"members":[%b]}' % b",".join([BEAT] * 200)),
}
FENCE = PATH.replace("heartbeat", "fence")
READS: dict[str, tuple[bytes, Reply]] = {
    "a fence": (a_request(b'{"generation_id":7}', path=FENCE), FenceReply(generation_id=7, is_member=True)),
    "a fence of a member": (a_request(BEAT, path=FENCE), FenceReply(ErrorCode.UNKNOWN_MEMBER_ID, "why")),
}
ANSWERED_ORDINARILY = {
    "a wait of a batch": a_request(BATCH[:-1] + b',"wait_ms":1}'),
    "an empty batch": a_request(b'{"members":[]}'),
    "a larger body": a_request(BATCH.ljust(MAX_BODY_BYTES + 1)),
    "a body that is too large": a_request(BEAT.ljust(LIMITS.request_max_bytes + 1)),
    "a body that is no JSON": a_request(b"{"),
    "no body": a_request(b""),
    "a list": a_request(b"[]"),
    "an unknown field": a_request(b'{"member_id":"m-1","generation_id":7,"x":1}'),
    "a wrong generation": a_request(b'{"member_id":"m-1","generation_id":-2}'),
    "a member id that is none": a_request(b'{"member_id":"\\u0000","generation_id":7}'),
    "a group that is none": a_request(path="/v1/namespaces/default/groups/a~b/heartbeat"),
    "an encoded name": a_request(path="/v1/namespaces/default/groups/a%3Ab/heartbeat"),
    "a name that is too long": a_request(path=f"/v1/namespaces/{'n' * 250}/groups/g/heartbeat"),
    "a query": a_request(path=PATH + "?x=1"),
    "an empty query": a_request(path=PATH + "?"),
    "a slash at the end": a_request(path=PATH + "/"),
    "a URL with a host": a_request(path="http://localhost" + PATH),
    "a GET": a_request(method="GET"),
    "a PUT": a_request(method="PUT"),
    "a HEAD": a_request(b"", method="HEAD"),
    "another call": a_request(path=PATH.replace("heartbeat", "offsets")),
    "HTTP/1.0": a_request(version="1.0"),
    "HTTP/1.0, kept alive": a_request(BEAT, *PLAIN, "Connection: keep-alive", version="1.0"),
    "closed": a_request(BEAT, *PLAIN, "Connection: close"),
    "closed, for a proxy": a_request(BEAT, *PLAIN, "Proxy-Connection: close"),
    "an upgrade": a_request(BEAT, *PLAIN, "Connection: upgrade", "Upgrade: h2c"),
    "an upgrade alone": a_request(BEAT, *PLAIN, "Upgrade: h2c"),
    "an expectation": a_request(BEAT, *PLAIN, "Expect: 100-continue"),
    "another expectation": a_request(BEAT, *PLAIN, "Expect: x"),
    "no type": a_request(BEAT, "Host: localhost"),
    "another type": a_request(BEAT, "Host: localhost", "Content-Type: text/plain"),
    "two types": a_request(BEAT, *PLAIN, "Content-Type: text/plain"),
    "a type twice": a_request(BEAT, *PLAIN, "Content-Type: application/json"),
    "a type with a charset": a_request(BEAT, "Host: localhost", "Content-Type: application/json; charset=utf-8"),
    "a compressed body": a_request(BEAT, *PLAIN, "Content-Encoding: gzip"),
    "no host": a_request(BEAT, "Content-Type: application/json"),
    "two hosts": a_request(BEAT, *PLAIN, "Host: localhost"),
    "an empty host and another": a_request(BEAT, "Host:", *PLAIN),
    "another's host": a_request(BEAT, "Host: evil.example", "Content-Type: application/json"),
    "a page's origin": a_request(BEAT, *PLAIN, "Origin: http://evil.example"),
    "a page of another site": a_request(BEAT, *PLAIN, "Sec-Fetch-Site: cross-site"),
    "a page of this site": a_request(BEAT, *PLAIN, "Sec-Fetch-Site: same-origin", "Origin: http://localhost"),
    "a note": a_request(BEAT, *PLAIN, "Rota-Note: because"),
    "two tokens": a_request(BEAT, *PLAIN, "Authorization: Bearer x", "Authorization: Bearer y"),
    "chunks": a_request(b"25\r\n" + BEAT + b"\r\n0\r\n\r\n", *PLAIN, "Transfer-Encoding: chunked").replace(
        b"Content-Length", b"X"
    ),
}
BROKEN = {
    "a length and chunks": a_request(BEAT, *PLAIN, "Transfer-Encoding: chunked"),
    "chunks and a length": a_request(BEAT, *PLAIN, "Transfer-Encoding: chunked", "X: y", length="5"),
    "two lengths": a_request(BEAT, *PLAIN, "Content-Length: 5"),
    "the same length twice": a_request(BEAT, *PLAIN, f"Content-Length: {len(BEAT)}"),
    "a signed length": a_request(length="+37"),
    "a list of lengths": a_request(length="37, 37"),
    "a hexadecimal length": a_request(length="0x25"),
    "an endless length": a_request(length="9" * 30),
    "a folded header": a_request(BEAT, *PLAIN, "X: a\r\n b"),
    "a space before the colon": a_request(BEAT, "Host: localhost", "Content-Type : application/json"),
    "a lone line feed": a_request().replace(b"\r\n", b"\n"),
    "a lone carriage return": a_request(BEAT, *PLAIN, "X: a\rb"),
    "a NUL in a header": a_request(BEAT, *PLAIN, "X: a\0b"),
    "another version": a_request(version="1.2"),
    "an obsolete method": a_request(method="POSTS"),
    "a space in the path": a_request(path=PATH + " x"),
}


@pytest.mark.parametrize("name", ANSWERED_FAST)
async def test_what_is_plain_is_answered_fast(name: str, both: Both) -> None:
    answer, fast = await compare(both, ANSWERED_FAST[name])

    assert answer.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
    assert fast == 1


@pytest.mark.parametrize("name", ANSWERED_ORDINARILY)
async def test_what_is_unusual_takes_the_ordinary_way(name: str, both: Both) -> None:
    _, fast = await compare(both, ANSWERED_ORDINARILY[name])

    assert fast == 0


@pytest.mark.parametrize("name", READS)
async def test_a_fence_is_answered_in_the_connection(name: str, both: Both) -> None:
    """Twice on one connection."""
    request, both.scripted.reply = READS[name]

    answer, fast = await compare(both, request, request)

    assert answer.count(b"HTTP/1.1 ") == 3
    assert fast == 2


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_broken_is_refused_alike(name: str, both: Both) -> None:
    answer, _ = await compare(both, BROKEN[name])

    assert answer.count(b"HTTP/1.1 ") <= 2


async def test_a_request_is_answered_before_later_bytes_are_rejected(both: Both) -> None:
    answer = await both.fast.exchange(a_request(BEAT + BEAT, length=str(len(BEAT))))

    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"400"]
    assert len(both.scripted.requests) == 1


@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not ErrorCode.NONE])
@pytest.mark.parametrize("body", [BEAT, BATCH], ids=["alone", "together"])
async def test_refusals_of_the_coordinator_are_the_same(code: ErrorCode, body: bytes, both: Both) -> None:
    both.scripted.reply = HeartbeatReply(code, "why", 8, "PreparingRebalance")

    _, fast = await compare(both, a_request(body))

    assert fast == 1


@pytest.mark.parametrize("cut", [1, 10, 60, 120, len(a_request()) - len(BEAT), len(a_request()) - 1])
async def test_a_request_in_two_pieces_is_answered_once(cut: int, both: Both) -> None:
    request = a_request()

    answer, _ = await compare(both, request[:cut], request[cut:] + request)

    assert answer.count(b"HTTP/1.1 200") == 3


async def test_requests_behind_each_other_are_answered_in_their_order(both: Both) -> None:
    """Among them one that takes the ordinary way: those behind it follow it there."""
    beats = [a_request(b'{"member_id":"m-%d","generation_id":7}' % n) for n in range(9)]
    health = a_request(b"", path="/healthz", method="GET")
    both.scripted.reply = lambda r: HeartbeatReply(state=r.member_id) if isinstance(r, Heartbeat) else None

    answer, fast = await compare(both, b"".join(beats[:3]) + health + b"".join(beats[3:]))

    said = re.findall(rb'"(?:state|outcome)":"([^"]*)"', answer)
    assert said == [b"m-0", b"m-1", b"m-2", b"ok", *(b"m-%d" % n for n in range(3, 9)), b"ok"]
    assert fast == 3


@pytest.mark.parametrize("seed", range(4))
async def test_bytes_that_are_nearly_right_get_the_same_answers(seed: int, both: Both) -> None:
    """Heartbeats of several kinds behind each other, changed here and there, in pieces that begin and end anywhere."""
    random = Random(seed)
    kinds = [*ANSWERED_FAST.values(), *ANSWERED_ORDINARILY.values(), *BROKEN.values()]
    kinds = [kind for kind in kinds if len(kind) < 4_000 and b"wait_ms" not in kind]
    for _ in range(30):
        sent = b"".join(random.choices(kinds, k=random.choice((1, 2, 4))))
        if random.random() < 0.6:
            sent = mutated(random, sent)
        cuts = sorted(random.choices(range(len(sent) + 1), k=random.choice((0, 1, 2))))
        parts = [sent[begin:end] for begin, end in pairwise([0, *cuts, len(sent)])]

        plain, fast = [await listener.exchange(*parts, ends=True) for listener in (both.plain, both.fast)]

        assert plain == fast, parts


@pytest.mark.parametrize("headers", [PLAIN, (*PLAIN, "Rota-Note: ordinary")])
async def test_a_request_while_another_is_under_way_waits_for_it(headers: tuple[str, ...], both: Both) -> None:
    """Behind a call that is parked, either way."""
    request, reply = a_request(), HeartbeatReply(generation_id=7, state="Stable")
    both.scripted.reply = lambda r: None if isinstance(r, Heartbeat) and r.wait_ms else reply
    reader, writer = await asyncio.open_connection("127.0.0.1", both.fast.port)
    writer.write(request)
    await reader.readuntil(b"}")
    writer.write(a_request(b'{"member_id":"m-2","generation_id":7,"wait_ms":9000}', *headers))
    await both.scripted.until_parked(1)

    writer.write(request)
    for _ in range(20):
        await asyncio.sleep(0)
    asked = len(both.scripted.requests)
    both.scripted.reply = reply
    both.scripted.answer_one_parked(HeartbeatReply(generation_id=9, state="Stable"))
    answers = [await reader.readuntil(b"}") for _ in range(2)]
    writer.close()

    assert asked == 2
    assert [b'"generation_id":9' in answers[0], b'"generation_id":7' in answers[1]] == [True, True]


async def test_where_calls_are_traced_all_take_the_ordinary_way(both: Both) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", both.fast.port)
    writer.write(a_request())
    await reader.readuntil(b"}")
    tracing.install(OtelSpans(TracerProvider()))
    try:
        for body in (BEAT, BATCH):
            writer.write(a_request(body))
            await reader.readuntil(b"\r\n\r\n{")
    finally:
        tracing.install(None)
        writer.close()

    assert both.fast.ordinary == 2


async def test_the_time_of_keep_alive_starts_with_each_answer(both: Both) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", both.fast.port)
    writer.write(a_request())
    await reader.readuntil(b"}")
    local = writer.get_extra_info("sockname")
    protocols = both.fast.server.server_state.connections
    protocol = next(p for p in protocols if isinstance(p, HttpConnection) and p.client == local)

    protocol.timeout_keep_alive = 0
    protocol.timeout_keep_alive_handler()
    assert protocol.timeout_keep_alive_task is not None
    writer.write(a_request())
    await reader.readuntil(b"}")
    protocol.timeout_keep_alive_handler()

    assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize("fails", [0, 1, 2])
async def test_an_error_of_the_server_is_logged_and_answered(
    fails: int, both: Both, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the parser's callback, where it would be bytes that are no HTTP, and later, where the connection would end."""
    calls, answer = count(), both.scripted.try_heartbeat

    def answer_or_fail(request: Heartbeat | HeartbeatMany) -> Answer | None:
        if next(calls) % 3 == fails:
            raise RuntimeError("a bug")
        return answer(request)

    monkeypatch.setattr(both.scripted, "try_heartbeat", answer_or_fail)
    answers, fast = await compare(both, *[a_request()] * 3)

    statuses = [200, 200, 200, 200]
    statuses[fails] = 500
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"%d" % each for each in statuses]
    assert b"COORDINATOR_NOT_AVAILABLE" in answers
    assert fast == 3
    assert [str(each.exc_info[1]) for each in caplog.records if each.exc_info] == ["a bug", "a bug"]
