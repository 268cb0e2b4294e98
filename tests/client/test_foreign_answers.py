"""Answers of other programs over HTTP: each is `CoordinatorUnreachable`, and ends no member."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from rota.client import Client, CoordinatorUnreachable
from rota.client.errors import UnreachableKind
from rota.client.transports import HttpTransport
from rota.client.transports.http_answers import MAX_PROBLEM_BYTES
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Request
from rota.protocol.wire.addresses import IS_THIS_ROTA
from rota.protocol.wire.problems import MAX_RETRY_AFTER_MS
from tests.client.unreachable import BEAT, DEADLINE_S, REQUESTS, failure_of
from tests.contracts.transports import a_door

FOREIGN = {
    **{
        f"an HTML page with {status}": httpx.Response(status, html="<h1>nginx</h1>")
        for status in (200, 300, 302, 304, 307, 400, 401, 403, 404, 405, 408, 410, 411, 413, 418, 421, 425, 428, 431)
    },
    **{f"an empty {status}": httpx.Response(status) for status in (200, 204, 404, 500, 502, 503, 504, 599)},
    "JSON of another program": httpx.Response(404, json={"code": 404, "message": "no route"}),
    "a code of ours from another program": httpx.Response(400, json={"code": "INVALID_REQUEST"}),
    "a problem of another program": httpx.Response(403, json={"type": "about:blank", "code": "UNAUTHENTICATED"}),
    "a code of a newer release": httpx.Response(409, json={"type": "urn:rota:error:NEW", "code": "NEW"}),
    "a problem without an error": httpx.Response(400, json={"type": "urn:rota:error:NONE", "code": "NONE"}),
    "a JSON list": httpx.Response(200, json=[1]),
    "an object of another program": httpx.Response(200, json={"ok": True}),
    "half an object": httpx.Response(200, content=b'{"generation_id": 3, "sta'),
    "deep nesting": httpx.Response(200, content=b"[" * 100_000),
    "a number of 5000 digits": httpx.Response(200, content=b'{"generation_id": ' + b"9" * 5_000 + b"}"),
    "text that is not UTF-8": httpx.Response(400, content=b'{"code": "\xff"}'),
    "a larger error than any": httpx.Response(502, content=b"x" * (MAX_PROBLEM_BYTES + 1)),
    "a redirect": httpx.Response(308, headers={"location": "https://elsewhere.example/v1"}),
    "a wait that is no number": httpx.Response(503, headers={"retry-after": "9" * 5_000}),
}
"""By name, what another program may answer."""

NO_TOPICS: dict[str, Any] = {"next_page_token": None, "topics": [], "version": "1", "revision": 1, "epoch": 1}


def replying(response: httpx.Response) -> HttpTransport:
    def answer(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(response.status_code, headers=response.headers, content=response.content)

    return HttpTransport(["http://proxy.example"], inner=httpx.MockTransport(answer))


def raising(error: Exception) -> HttpTransport:
    def answer(_request: httpx.Request) -> httpx.Response:
        raise error

    return HttpTransport(["http://proxy.example"], inner=httpx.MockTransport(answer))


# --- answers of other programs ----------------------------------------------------------------


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("response", FOREIGN.values(), ids=FOREIGN)
async def test_an_answer_of_another_program_counts_as_no_answer(request_: Request, response: httpx.Response) -> None:
    failure = await failure_of(replying(response), request_)

    assert (failure.kind, failure.was_sent) == (UnreachableKind.FOREIGN_ANSWER, True)
    assert "http://proxy.example" in failure.detail
    assert IS_THIS_ROTA in failure.detail


async def test_the_cause_names_status_address_and_redirect() -> None:
    failure = await failure_of(replying(FOREIGN["a redirect"]))
    assert failure.detail == (
        "HTTP status 308 from http://proxy.example (a redirect to https://elsewhere.example/v1)"
        " without an error code of Rota's; is this a Rota server, or a proxy in front of it?"
    )


@pytest.mark.parametrize(
    ("retry_after", "expected_ms"),
    [("7", 7_000), ("86400", MAX_RETRY_AFTER_MS), ("9" * 5_000, MAX_RETRY_AFTER_MS), ("-1", 0), ("tomorrow", 0)],
)
async def test_a_proxy_that_asks_for_patience_gets_some_of_it(retry_after: str, expected_ms: int) -> None:
    asking = httpx.Response(429, headers={"retry-after": retry_after}, html="<h1>slow down</h1>")
    answer = await replying(asking).send(BEAT, timeout_ms=1_000)
    assert (answer.reply.error, answer.retry_after_ms) == (ErrorCode.THROTTLED, expected_ms)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_an_answer_that_cannot_be_decoded_counts_as_none(encoding: str) -> None:
    def answer(_request: httpx.Request) -> httpx.Response:
        stream = httpx.ByteStream(b"this is no compressed text")
        return httpx.Response(200, headers={"content-encoding": encoding}, stream=stream)

    failure = await failure_of(HttpTransport(["http://proxy.example"], inner=httpx.MockTransport(answer)))

    assert failure.kind is UnreachableKind.FOREIGN_ANSWER
    assert "cannot be decoded" in failure.detail


async def test_a_compressed_answer_is_read_in_bounded_memory() -> None:
    packed, chunks = gzip.compress(bytes(MAX_PROBLEM_BYTES * 2)), 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal chunks
        while True:
            chunks += 1
            yield packed

    def answer(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(502, headers={"content-encoding": "gzip"}, content=body())

    failure = await failure_of(HttpTransport(["http://proxy.example"], inner=httpx.MockTransport(answer)))

    assert failure.kind is UnreachableKind.FOREIGN_ANSWER
    assert chunks == 1


@pytest.mark.parametrize(
    "error",
    [
        httpx.TooManyRedirects("more than 20"),
        httpx.InvalidURL("no URL"),
        httpx.StreamConsumed(),
        httpx.CookieConflict("two of a name"),
        RuntimeError("a bug"),
        KeyError("a bug"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_exception_that_nobody_expected_counts_as_no_answer(error: Exception) -> None:
    failure = await failure_of(raising(error))
    assert (failure.kind, failure.__cause__) == (UnreachableKind.BROKEN, error)
    assert type(error).__name__ in failure.detail


async def test_after_a_foreign_answer_the_next_call_goes_elsewhere() -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.host)
        return httpx.Response(404)

    transport = HttpTransport(["http://a", "http://b"], inner=httpx.MockTransport(answer))
    for _ in range(2):
        await failure_of(transport)
    assert seen == ["a", "b"]


@pytest.mark.parametrize(("status", "calls"), [(302, 2), (401, 2), (404, 2), (502, 3), (408, 3)])
async def test_a_call_is_not_repeated_for_long_where_no_rota_answers(status: int, calls: int) -> None:
    """One that may succeed later is repeated until the caller's patience ends: here, until the third call."""
    seen = 0

    def answer(_request: httpx.Request) -> httpx.Response:
        nonlocal seen
        seen += 1
        return httpx.Response(status) if seen < 3 else httpx.Response(200, json=NO_TOPICS)

    transport = HttpTransport(["http://proxy.example"], inner=httpx.MockTransport(answer))
    async with Client(transport, client_id="c") as client:
        if calls == 2:
            with pytest.raises(CoordinatorUnreachable, match=f"HTTP status {status} from http://proxy.example"):
                await client.topics()
        else:
            assert await client.topics() == []
    assert seen == calls


# --- members ----------------------------------------------------------------------------------


@dataclass
class Proxy(httpx.AsyncBaseTransport):
    """Passes calls on, or answers them itself."""

    answer: Callable[[], httpx.Response] | None = None
    answered: int = 0
    real: httpx.AsyncHTTPTransport = field(default_factory=httpx.AsyncHTTPTransport)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.answer is None or request.url.path.endswith("/coordinator"):
            return await self.real.handle_async_request(request)
        async with self.changed:
            self.answered += 1
            self.changed.notify_all()
        return self.answer()

    async def aclose(self) -> None:
        await self.real.aclose()

    async def until_answered(self, calls: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.answered >= calls)


def garbage() -> httpx.Response:
    return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"no gzip"))


OUTAGES: dict[str, Callable[[], httpx.Response]] = {
    "404 page not found": lambda: httpx.Response(404, text="404 page not found"),
    "a redirect to a login page": lambda: httpx.Response(302, headers={"location": "/login"}),
    "401 of an auth proxy": lambda: httpx.Response(401, headers={"www-authenticate": "Basic"}),
    "400 of another API": lambda: httpx.Response(400, json={"code": "INVALID_REQUEST"}),
    "gzip that is none": garbage,
    "a wait of 5000 digits": lambda: httpx.Response(503, headers={"retry-after": "9" * 5_000}),
}


@pytest.mark.parametrize("answer", OUTAGES.values(), ids=OUTAGES)
async def test_a_member_outlives_the_answers_of_another_program(answer: Callable[[], httpx.Response]) -> None:
    proxy, callbacks = Proxy(answer), list[str]()

    async def note(name: str) -> None:
        callbacks.append(name)

    async with AsyncExitStack() as stack, asyncio.timeout(DEADLINE_S):
        url = await stack.enter_async_context(a_door("http"))
        client = await stack.enter_async_context(Client(HttpTransport([url], inner=proxy), client_id="c"))
        member = client.member(
            "g",
            protocol_type="worker",
            protocols={"p": b""},
            assign=lambda generation: {each.member_id: b"all" for each in generation.members},
            session_timeout=10.0,
            on_assigned=lambda *_: note("assigned"),
            on_revoked=lambda *_: note("revoked"),
            on_lost=lambda *_: note("lost"),
        )
        await stack.enter_async_context(member)
        await proxy.until_answered(3)  # while it joins
        proxy.answer = None
        await member.wait_assigned()
        proxy.answer, proxy.answered = answer, 0
        await proxy.until_answered(3)  # while it heartbeats
        proxy.answer = None
        before = list(callbacks)

    assert before == ["assigned"]
