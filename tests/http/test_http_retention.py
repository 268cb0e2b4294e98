"""A server that runs for long deletes old lines of the journal, and says so when it starts."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from rota.server import lifecycle
from rota.server.lifecycle import serve
from rota.server.settings import Address, Settings
from rota.storage.migrate import upgrade
from rota.storage.store import SqlStore
from tests.contracts.test_pruning import batch, days_ago
from tests.support.ports import free_port

OLD, YOUNG = 20, 5


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    """A store with one shard that has lines of 100 days ago and of yesterday."""
    path = tmp_path / "rota.db"
    await upgrade(f"sqlite:///{path}")
    store = SqlStore(f"sqlite:///{path}")
    await store.open(1)
    await store.claim([0], "me", "", 60_000)
    await store.append([batch(0, 1, [days_ago(100)] * OLD + [days_ago(1)] * YOUNG)])
    await store.close()
    return path


def settings_of(store: Path, **more: int) -> Settings:
    http = Address("127.0.0.1", free_port())
    return Settings(store=f"sqlite:///{store}", http=http, shard_count=1, **more)  # type: ignore[arg-type]


async def lines_of(settings: Settings, until: int) -> int:
    """The server's gauge, once it has that value or more; asked of the server itself."""
    async with httpx.AsyncClient(base_url=f"http://{settings.http}", trust_env=False) as http, asyncio.timeout(30):
        while True:
            try:
                page = (await http.get("/metrics")).text
            except httpx.TransportError:
                continue
            [value] = [line.split()[1] for line in page.splitlines() if line.startswith("rota_journal_lines ")]
            if float(value) >= until:
                return int(float(value))


async def test_old_lines_go_at_the_first_upkeep(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifecycle, "UPKEEP_INTERVAL_SECONDS", 0.01)
    caplog.set_level(logging.INFO)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(settings_of(store), stop=stop))
        await until_first(store, OLD + 1)
        stop.set()

    reported = {record.message: record.__dict__ for record in caplog.records if record.name == "rota.server.retention"}
    assert reported["old lines of the journal are deleted"]["keep_days"] == 90
    assert reported["old lines of the journal were deleted"]["lines"] == OLD


async def until_first(store: Path, seq: int) -> None:
    """Return once the journal begins with that line."""
    async with asyncio.timeout(30):
        while await asyncio.to_thread(first_seq, store) != seq:
            continue  # each look waits for its thread


def first_seq(store: Path) -> int:
    with closing(sqlite3.connect(store)) as connection:
        return int(connection.execute("SELECT first_seq FROM shards WHERE shard_id = 0").fetchone()[0])


async def test_no_line_goes_in_the_first_hours(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stop, settings = asyncio.Event(), settings_of(store)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(settings, stop=stop))
        lines = await lines_of(settings, OLD + YOUNG)
        stop.set()

    [note] = [record.__dict__ for record in caplog.records if record.name == "rota.server.retention"]
    assert (note["keep_days"], note["first_deletion_after_s"]) == (90, 3 * 3_600)
    assert "--journal-keep-days" in note["change"]
    assert "ROTA_JOURNAL_KEEP_DAYS" in note["change"]
    assert lines >= OLD + YOUNG


async def test_zero_days_keep_all_lines_and_the_log_says_so(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stop, settings = asyncio.Event(), settings_of(store, journal_keep_days=0)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(settings, stop=stop))
        await lines_of(settings, OLD + YOUNG)
        stop.set()

    [note] = [record for record in caplog.records if record.name == "rota.server.retention"]
    assert note.message == "this server deletes no line of the journal"
    assert first_seq(store) == 1
