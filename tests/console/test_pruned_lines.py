"""Pages about a group without its older lines: they show the lines that are left, and where the journal begins."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from rota.protocol.limits import Limits
from rota.server.bootstrap import open_services
from rota.server.settings import Address, Settings
from rota.storage.pruning import prune
from tests.console.conftest import HOST, Site

pytestmark = pytest.mark.asyncio(loop_scope="module")

BEGINS = "The journal begins at revision {}: older lines are pruned."


@pytest_asyncio.fixture(loop_scope="module")
async def pruned(tmp_path: Path) -> AsyncIterator[tuple[Site, int]]:
    """A group `indexers` in the only shard, and the first revision that is left: that of its last line."""
    store = tmp_path / "rota.db"
    limits = Limits(initial_rebalance_delay_ms=0)
    settings = Settings(store=f"sqlite:///{store}", http=Address("127.0.0.1", 0), shard_count=1, limits=limits)
    async with open_services(settings, HOST) as services:
        await services.coordinator.wait_until_ready()
        transport = httpx.ASGITransport(services.api)
        async with httpx.AsyncClient(transport=transport, base_url=HOST, trust_env=False) as http:
            site = Site(http, "default")
            await site.stable("indexers")
            with closing(sqlite3.connect(store, timeout=30)) as connection, connection:
                (last,) = connection.execute("SELECT last_seq FROM shards").fetchone()
                connection.execute("UPDATE group_events SET at = at - 10 * 86400000 WHERE seq < ?", (last,))
            await prune(settings.store, keep_days=7)
            yield site, last


@pytest.mark.parametrize("page", ["timeline", "leader"])
async def test_pages_of_the_past_say_where_the_journal_begins(pruned: tuple[Site, int], page: str) -> None:
    site, first = pruned

    assert BEGINS.format(first) in await site.page(site.path("indexers", page))


async def test_the_download_names_the_first_revision(pruned: tuple[Site, int]) -> None:
    site, first = pruned

    downloaded = (await site.http.get(site.path("indexers", "journal.json"))).json()

    assert downloaded["first_revision"] == first
    assert [line["revision"] for line in downloaded["events"]] == [first]
