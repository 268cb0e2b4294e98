"""Parked calls, event streams, and what becomes of them when the caller or the server goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.types import Message

from rota.core.replica.ports import JournalEvent
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Heartbeat, HeartbeatReply
from rota.server.http.app import HttpApi, create_app
from rota.server.http.dependencies import PING_SECONDS
from rota.server.http.draining import Draining
from rota.server.http.streams import EventStream
from rota.server.observability.metrics import Metrics
from tests.http.scripted import EPOCH, ScriptedCoordinator
from tests.http.serving import serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

GROUP = "/v1/namespaces/default/groups/indexers"
JOIN = {"protocol_type": "worker", "protocols": [{"name": "range"}]}
SYNC = {"member_id": "m-1", "generation_id": 7}
HEARTBEAT = {"member_id": "m-1", "generation_id": 7, "wait_ms": 10_000}
PARKING = [
    ("POST", "join", JOIN),
    ("POST", "sync", SYNC),
    ("POST", "heartbeat", HEARTBEAT),
    ("GET", "leader?wait_ms=10000", None),
]


def event(seq: int, kind: str = "member_joined") -> JournalEvent:
    return JournalEvent(seq, seq, "default", "indexers", 7, kind, "line\nbreak ü", {"n": seq}, EPOCH)


async def frames(response: httpx.Response) -> AsyncIterator[dict[str, str]]:
    """The events of a stream, each by its fields; comments are left out."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if not line and fields:
            yield fields
            fields = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


@pytest.mark.parametrize(("method", "path", "body"), PARKING)
async def test_a_parked_call_is_cancelled_when_its_caller_hangs_up(
    method: str, path: str, body: object, scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    scripted.reply = None
    calling = asyncio.create_task(client.request(method, f"{GROUP}/{path}", json=body))
    await scripted.until_parked(1)
    calling.cancel()
    await scripted.until_cancelled(1)


async def test_a_parked_batch_is_answered_at_the_first_change(
    scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    stable = HeartbeatReply(generation_id=7, state="Stable")
    news = HeartbeatReply(ErrorCode.REBALANCE_IN_PROGRESS, generation_id=7, state="PreparingRebalance")
    scripted.heartbeats_at_once = False
    scripted.reply = lambda request: None if isinstance(request, Heartbeat) and request.wait_ms else stable
    members = [{"member_id": f"m-{number}", "generation_id": 7} for number in range(3)]
    calling = asyncio.create_task(client.post(f"{GROUP}/heartbeat", json={"members": members, "wait_ms": 9_000}))
    await scripted.until_parked(3)

    scripted.reply = news
    scripted.answer_one_parked(news)
    lines = (await calling).json()["members"]

    assert [line["error"] for line in lines] == ["REBALANCE_IN_PROGRESS"] * 3
    assert len(scripted.cancelled) == 2


async def test_a_batch_is_cancelled_whole_when_its_caller_hangs_up(
    scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    stable = HeartbeatReply(generation_id=7, state="Stable")
    scripted.reply = lambda request: None if isinstance(request, Heartbeat) and request.wait_ms else stable
    members = [{"member_id": f"m-{number}", "generation_id": 7} for number in range(3)]
    calling = asyncio.create_task(client.post(f"{GROUP}/heartbeat", json={"members": members, "wait_ms": 9_000}))
    await scripted.until_parked(3)
    calling.cancel()
    await scripted.until_cancelled(3)


async def test_a_stream_brings_what_happened_and_then_what_happens(
    scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    await scripted.append(event(1), event(2), event(3))
    async with client.stream("GET", f"{GROUP}/events?after=1") as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["x-accel-buffering"] == "no"
        stream = frames(response)
        past = [await anext(stream), await anext(stream)]
        await scripted.append(event(4, "member_left"))
        live = await anext(stream)

    assert [frame["id"] for frame in past] == ["2", "3"]
    assert (live["event"], live["id"]) == ("member_left", "4")
    data = json.loads(live["data"])
    assert (data["revision"], data["kind"], data["reason"]) == (4, "member_left", "line\nbreak ü")


async def test_a_stream_resumes_after_the_browsers_last_event(
    scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    await scripted.append(event(1), event(2), event(3))
    headers = {"Last-Event-ID": "2"}
    async with client.stream("GET", f"{GROUP}/events?after=0", headers=headers) as response:
        assert (await anext(frames(response)))["id"] == "3"


async def test_a_silent_stream_is_pinged_and_a_closed_one_is_released(
    scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    async with client.stream("GET", f"{GROUP}/events") as response:
        lines = response.aiter_lines()
        pings = [line async for line in _first(lines, 5) if line]
        assert pings == [": ping"] * 3
        assert scripted.watchers == 1
    await scripted.until_watched(0)


async def test_a_stream_reports_a_journal_that_cannot_be_followed(
    scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    async with client.stream("GET", f"{GROUP}/events") as response:
        await scripted.until_watched(1)
        await scripted.end_journal()
        assert [frame["event"] async for frame in frames(response)] == ["interrupted"]


async def test_a_stream_that_ends_twice_lets_go_of_the_journal(scripted: ScriptedCoordinator) -> None:
    """The client has not taken an event yet, and it takes a while until the server has closed its connection."""
    untaken, ended, cleared = (asyncio.Event() for _ in range(3))

    async def receive() -> Message:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
            await cleared.wait()
        return {}

    async def send(message: Message) -> None:
        if b"id: 1" in message.get("body", b""):
            untaken.set()
            await asyncio.Event().wait()

    await scripted.append(event(1))
    stream = EventStream(scripted.watch("default", "indexers", 0), Metrics(), Draining(), PING_SECONDS)
    running = asyncio.create_task(stream({"method": "GET"}, receive, send))
    await untaken.wait()

    running.cancel()
    await ended.wait()
    running.cancel()
    cleared.set()
    await asyncio.gather(running, return_exceptions=True)

    assert running.cancelled()
    assert scripted.watchers == 0


@pytest.mark.parametrize("query", ["?after=x", "?after=-1", "?after=99999999999999999999"])
async def test_a_stream_from_nowhere_is_refused(query: str, client: httpx.AsyncClient) -> None:
    response = await client.get(f"{GROUP}/events{query}")
    assert (response.status_code, response.json()["code"]) == (400, "INVALID_REQUEST")


async def test_a_draining_server_keeps_nobody_waiting() -> None:
    coordinator = ScriptedCoordinator()
    coordinator.reply = None
    api = create_app(coordinator)
    async with serving(api) as client:
        async with client.stream("GET", f"{GROUP}/events") as stream:
            calls = [client.request(method, f"{GROUP}/{path}", json=body) for method, path, body in PARKING]
            calling = asyncio.gather(*calls)
            await coordinator.until_parked(len(PARKING))
            await coordinator.until_watched(1)
            await drain(api, coordinator)
            responses = await calling
            last_frames = [frame["event"] async for frame in frames(stream)]
        ready = await client.get("/readyz")

    assert [response.status_code for response in responses] == [503] * len(PARKING)
    assert {response.json()["code"] for response in responses} == {"COORDINATOR_NOT_AVAILABLE"}
    assert {response.headers["retry-after"] for response in responses} == {"1"}
    assert last_frames == ["server-drain"]
    assert (ready.status_code, ready.json()["detail"]) == (503, "draining")


async def drain(api: HttpApi, coordinator: ScriptedCoordinator) -> None:
    """In the order of `rota.server.lifecycle`."""
    api.begin_drain()
    await coordinator.drain()


async def _first(lines: AsyncIterator[str], count: int) -> AsyncIterator[str]:
    for _ in range(count):
        yield await anext(lines)
