"""The SDK against a real server over real sockets: work is split, a member falls silent, the rest take over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

import rota
from rota.client import Client, Member, OffsetToCommit
from rota.client.transports import HttpTransport
from rota.protocol.limits import Limits
from rota.server.http.app import create_app
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryStore
from tests.client.stage import GROUP, TOPICS, Partitions, all_partitions_are_shared
from tests.http.serving import serving

SESSION_S = 2.0


class Wire(httpx.AsyncHTTPTransport):
    """The network of one process; once cut, it neither sends nor receives."""

    def __init__(self) -> None:
        super().__init__()
        self._is_cut = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._is_cut.is_set():
            raise httpx.ConnectError("the wire is cut", request=request)
        call = asyncio.ensure_future(super().handle_async_request(request))
        cut = asyncio.ensure_future(self._is_cut.wait())
        try:
            await asyncio.wait((call, cut), return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise httpx.ReadError("the wire was cut", request=request)
            return call.result()
        finally:
            call.cancel()
            cut.cancel()
            await asyncio.wait((call, cut))

    def cut(self) -> None:
        """All calls under way break off, and the server receives nothing more from the member."""
        self._is_cut.set()


@asynccontextmanager
async def a_server() -> AsyncIterator[str]:
    """The URL of a real server."""
    clock = SystemClock()
    store = MemoryStore(clock.monotonic_ms)
    await store.open(4)
    limits = Limits(initial_rebalance_delay_ms=50)
    async with LocalCoordinator(store, shard_count=4, limits=limits, clock=clock) as coordinator:
        await coordinator.wait_until_ready()
        async with serving(create_app(coordinator, limits)) as http:
            yield str(http.base_url)


def a_member(client: Client, lost: asyncio.Event | None = None) -> Member[Partitions]:
    return client.consumer(GROUP, TOPICS, session_timeout=SESSION_S, on_lost=lambda _: lost.set() if lost else None)


async def test_three_members_share_and_two_take_over_from_a_silent_one() -> None:
    lost = asyncio.Event()
    async with a_server() as url, AsyncExitStack() as stack, asyncio.timeout(60):
        wire = Wire()
        doomed_client = await stack.enter_async_context(Client(HttpTransport([url], inner=wire), client_id="doomed"))
        client = await stack.enter_async_context(rota.connect(url))
        doomed = await stack.enter_async_context(a_member(doomed_client, lost))
        others = [await stack.enter_async_context(a_member(client)) for _ in range(2)]
        await all_partitions_are_shared([doomed, *others])
        await doomed.commit([OffsetToCommit(*partition, 1) for partition in doomed.assignment or ()])
        wire.cut()
        await all_partitions_are_shared(others)
        assert lost.is_set()
        assert doomed.assignment is None
        assert len(await client.offsets(GROUP)) == 4


async def test_the_journal_can_be_watched_from_its_beginning() -> None:
    async with a_server() as url, rota.connect(url) as client, asyncio.timeout(60):
        async with a_member(client) as member:
            await member.wait_assigned()
        kinds = []
        async for event in client.watch(GROUP, after_revision=0):
            kinds.append(event.kind)
            if event.kind == "group_emptied":
                break
        assert "generation_completed" in kinds
        assert "assignment_synced" in kinds


async def test_a_client_without_a_block_starts_and_closes() -> None:
    async with a_server() as url:
        client = rota.connect(url)
        await client.start()
        pool = client.worker_pool("g", {"docs": 1}, lambda _shard: asyncio.sleep(3_600))
        await pool.start()
        await pool.consumer.wait_assigned()

        await client.close()
        await client.close()

        assert not pool.is_open
        with pytest.raises(RuntimeError, match="this client is closed"):
            await client.list_groups()
        async with rota.connect(url) as other:
            assert (await other.describe_group("g")).members == ()
