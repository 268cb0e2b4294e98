"""Readers that come back to pruned lines: 410 with the first revision, and no gap without a word."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio

from rota.core.replica.ports import StoreUnavailable
from rota.protocol.messages import CommitOffsets, OffsetToCommit
from rota.server.http.app import create_app
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryStore, MemoryTables
from tests.http.scripted import ScriptedCoordinator
from tests.http.serving import serving
from tests.http.test_http_waiting import event, frames

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVENTS = "/v1/namespaces/default/groups/indexers/events"
PRUNED = 3
"""The last of the lines that are pruned. The first line is the shard's own."""
LAST = 6
SOON_S = 10.0


@dataclass(frozen=True, slots=True)
class Pruned:
    """A server with one shard, of lines 4 to 6 of the group `indexers`; line 6 is the only one of `quiet`."""

    client: httpx.AsyncClient
    tables: MemoryTables


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pruned() -> AsyncIterator[Pruned]:
    clock = SystemClock()
    store = MemoryStore(clock.monotonic_ms)
    await store.open(1)
    async with LocalCoordinator(store, shard_count=1, clock=clock) as coordinator:
        await coordinator.wait_until_ready()
        for offset, group in enumerate(["indexers"] * (LAST - 2) + ["quiet"]):
            await coordinator.call(CommitOffsets("default", group, -1, (OffsetToCommit("docs", 0, offset),)))
        store.tables.prune_shard(0, PRUNED)
        async with serving(create_app(coordinator)) as client:
            yield Pruned(client, store.tables)
            await coordinator.drain()


def is_about_pruned_lines(problem: dict[str, object]) -> bool:
    said = (problem["status"], problem["code"], problem["first_revision"], problem["retriable"], problem["remedy"])
    return said == (410, "REVISION_OUT_OF_RANGE", PRUNED + 1, False, "read state")


@pytest.mark.parametrize("query", ["", "&after=0", "&after=2", "&after=2&limit=1"])
async def test_a_page_behind_pruned_lines_is_refused(pruned: Pruned, query: str) -> None:
    response = await pruned.client.get(f"/v1/events?shard=0{query}")

    assert (response.status_code, response.headers["content-type"]) == (410, "application/problem+json")
    assert is_about_pruned_lines(response.json())
    assert response.json()["detail"].endswith("to 3 are pruned; read the present state, then read on after revision 3")


async def test_the_revision_of_an_empty_page_is_where_to_read_on() -> None:
    coordinator = ScriptedCoordinator()
    coordinator.first_revision = 8
    async with serving(create_app(coordinator)) as client:
        page = (await client.get("/v1/events?shard=0&after=earliest")).json()

    assert (page["events"], page["revision"]) == ([], 7)


@pytest.mark.parametrize(
    ("query", "headers"),
    [("?after=0", {}), ("?after=2", {}), ("", {"Last-Event-ID": "1"}), ("?after=5", {"Last-Event-ID": "2"})],
)
@pytest.mark.parametrize("group", ["indexers", "quiet", "unheard-of"])
async def test_a_stream_behind_pruned_lines_does_not_begin(
    pruned: Pruned, group: str, query: str, headers: dict[str, str]
) -> None:
    path = EVENTS.replace("indexers", group)
    async with asyncio.timeout(SOON_S):  # a stream would not end
        response = await pruned.client.get(f"{path}{query}", headers=headers)

    assert (response.status_code, response.headers["content-type"]) == (410, "application/problem+json")
    assert is_about_pruned_lines(response.json())


async def test_a_stream_that_is_overtaken_ends_with_an_event(
    scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    await scripted.append(event(1))
    async with client.stream("GET", f"{EVENTS}?after=0") as response:
        stream = frames(response)
        assert (await anext(stream))["id"] == "1"
        await scripted.prune(up_to=PRUNED)
        async with asyncio.timeout(SOON_S):
            (last,) = [frame async for frame in stream]

    assert (last["event"], "id" in last) == ("revision-out-of-range", False)
    assert is_about_pruned_lines(json.loads(last["data"]))


async def test_a_store_that_is_away_does_not_end_a_browsers_stream() -> None:
    """A browser does not connect again after a status that is not 200."""
    coordinator = StoreIsAway()
    async with serving(create_app(coordinator)) as client, asyncio.timeout(SOON_S):
        async with client.stream("GET", f"{EVENTS}?after=0") as response:
            assert response.status_code == 200
        earliest = await client.get(f"{EVENTS}?after=earliest")

    assert (earliest.status_code, earliest.json()["code"]) == (503, "COORDINATOR_NOT_AVAILABLE")


class StoreIsAway(ScriptedCoordinator):
    """It cannot read the first revision."""

    async def check_revision(self, namespace: str, group_id: str, after_revision: int) -> None:
        raise StoreUnavailable("the store is away")
