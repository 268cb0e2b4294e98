"""Large bodies: parsed beside the event loop, with the same result, and batches that are bounded."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import httpx
import pytest
from starlette.types import Message

from rota.core.access.budgets import Share
from rota.protocol.limits import Limits
from rota.protocol.messages import CommitOffsets
from rota.protocol.wire.routes import REQUESTS
from rota.server.http import bodies
from rota.server.http.app import create_app
from rota.server.http.heartbeats import MAX_WAITING
from rota.server.http.rendered import HttpRefusal
from rota.server.large import ON_THE_LOOP_BYTES, read_large
from tests.http.both_ways import a_request, listening
from tests.http.scripted import ScriptedCoordinator

pytestmark = pytest.mark.asyncio(loop_scope="module")

GROUP = "/v1/namespaces/default/groups/indexers"


async def test_only_large_messages_leave_the_event_loop() -> None:
    here = threading.get_ident()

    assert await read_large(ON_THE_LOOP_BYTES, threading.get_ident) == here
    assert await read_large(ON_THE_LOOP_BYTES + 1, threading.get_ident) != here


async def test_the_event_loop_runs_on_while_a_large_body_is_parsed(
    scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    offsets = b",".join(b'{"topic":"t","partition":%d,"offset":1}' % n for n in range(60_000))
    turns, body = 0, b'{"offsets":[' + offsets + b"]}"
    read = REQUESTS[CommitOffsets].read
    parsing = asyncio.create_task(read_large(len(body), lambda: read(body, Limits(), namespace="n", group_id="g")))

    while not parsing.done():
        turns += 1
        await asyncio.sleep(0)

    assert len((await parsing).offsets) == 60_000
    assert turns > 10


@pytest.mark.parametrize("path", ["heartbeat", "join"])
async def test_a_large_body_is_answered_as_a_small_one(
    path: str, scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    wrong = b'{"surplus": "' + b"x" * ON_THE_LOOP_BYTES + b'"}'

    answer = await client.post(f"{GROUP}/{path}", content=wrong, headers={"content-type": "application/json"})

    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert scripted.requests == []


@pytest.mark.parametrize(
    ("names", "status"),
    [
        ([f"m{n}" for n in range(MAX_WAITING)], 200),
        ([f"m{n}" for n in range(MAX_WAITING + 1)], 413),
        (["m", "m"], 400),
    ],
)
async def test_members_that_wait_in_one_message_are_bounded(
    names: list[str], status: int, scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    beats = [{"member_id": name, "generation_id": 7} for name in names]

    waiting = await client.post(f"{GROUP}/heartbeat", json={"members": beats, "wait_ms": 1})
    at_once = await client.post(f"{GROUP}/heartbeat", json={"members": beats})

    assert (waiting.status_code, at_once.status_code) == (status, 200)


async def test_a_body_is_not_kept_once_its_request_is_answered() -> None:
    """Nothing has read it. The rest is due, so the connection stays open."""
    async with listening(create_app(ScriptedCoordinator()), fast=True) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(a_request(b"x" * 100_000, path="/v1/nothing", length="1000000"))
        answer = await reader.readuntil(b"}")
        connections = list(listener.server.server_state.connections)
        kept = [len(connection.cycle.body) for connection in connections]  # type: ignore[union-attr]
        writer.close()

    assert answer.startswith(b"HTTP/1.1 404")
    assert kept == [0]


async def test_one_source_leaves_room_for_the_bodies_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Counter[str]()
    monkeypatch.setattr(bodies, "_under_way", bodies._UnderWay())
    bodies.bound_bodies(Share(per_source=3_000, in_all=5_000), lambda: refused.update(["unfinished_bodies"]))

    async def a_piece() -> Message:
        return {"type": "http.request", "body": b"x" * 1_000, "more_body": False}

    async def stall() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async with asyncio.TaskGroup() as tasks:
        stalled = [tasks.create_task(bodies._under_way.read(b"x" * 1_400, stall, 8_000, "a")) for _ in range(2)]
        await asyncio.sleep(0)

        with pytest.raises(HttpRefusal, match="too many large bodies"):
            await bodies._under_way.read(b"", a_piece, 8_000, "a")
        assert await bodies._under_way.read(b"", a_piece, 8_000, "b") == b"x" * 1_000

        for task in stalled:
            task.cancel()
    assert refused == {"unfinished_bodies": 1}
