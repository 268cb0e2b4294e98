"""What the embedded store promises beyond the contract: one service at a time, and every answered fact on the disk."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from rota.core.group.rows import RowChanges
from rota.core.replica.ports import Replica, ShardClaim, StoreRefused, StoreUnavailable
from rota.storage.append import driver_of
from rota.storage.migrate import check, upgrade
from rota.storage.restored import restored
from rota.storage.sqlite import SqliteConnections
from rota.storage.store import SqlStore
from rota.storage.store_file import FileLock
from rota.storage.urls import PostgresLocation, SqliteLocation, default_store_url, parse_store_url
from tests.contracts.builders import a_batch, a_group, an_event, an_offset, image_of
from tests.contracts.conftest import EVENTUALLY_S, SHARD_COUNT


@pytest.fixture
async def store(sqlite_url: str) -> AsyncIterator[SqlStore]:
    store = SqlStore(sqlite_url)
    await store.open(SHARD_COUNT)
    yield store
    await store.close()


def path_of(url: str) -> Path:
    location = parse_store_url(url)
    assert isinstance(location, SqliteLocation)
    return location.path


async def claim_one(store: SqlStore) -> ShardClaim:
    (claim,) = await store.claim([0], "r-1", "http://one", 60_000, steal=True)
    return claim


async def test_a_second_service_on_a_file_waits_for_the_firsts_close(store: SqlStore, sqlite_url: str) -> None:
    second = SqlStore(sqlite_url)

    with pytest.raises(StoreRefused, match="another service is using this store"):
        await second.open(SHARD_COUNT)
    await store.close()

    await second.open(SHARD_COUNT)
    await second.close()


async def test_another_name_of_the_same_file_meets_the_same_lock(
    store: SqlStore, sqlite_url: str, tmp_path: Path
) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path_of(sqlite_url))

    with pytest.raises(StoreRefused, match="another service"):
        await SqlStore(f"sqlite:///{link}").open(SHARD_COUNT)


async def test_the_schema_cannot_be_changed_under_a_running_service(store: SqlStore, sqlite_url: str) -> None:
    with pytest.raises(StoreRefused, match="another service"):
        await upgrade(sqlite_url)

    assert (await check(sqlite_url)).up_to_date


async def test_a_store_that_was_refused_lets_go_of_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    sqlite3.connect(path).close()
    path.touch()
    url = f"sqlite:///{path}"
    with pytest.raises(StoreRefused, match="rota db upgrade"):
        await SqlStore(url).open(SHARD_COUNT)

    assert (await upgrade(url)).up_to_date


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    path.write_text("not a database at all, but long enough to look at " * 100)

    with pytest.raises(StoreRefused, match="not a database"):
        await SqlStore(f"sqlite:///{path}").open(SHARD_COUNT)


async def test_a_missing_file_is_not_made_by_opening_it(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"

    with pytest.raises(StoreRefused, match="rota db upgrade"):
        await SqlStore(f"sqlite:///{path}").open(SHARD_COUNT)

    assert list(tmp_path.iterdir()) == []


async def test_commits_are_synced_to_a_write_ahead_log(store: SqlStore) -> None:
    async with store._writing() as connection:
        pragmas = {
            name: (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }

    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


async def test_a_locked_file_is_unavailable_until_it_is_unlocked(
    store: SqlStore, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await claim_one(store)
    monkeypatch.setattr(store, "_write_timeout_s", 0.5)
    intruder = sqlite3.connect(path_of(sqlite_url), isolation_level=None)
    intruder.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreUnavailable):
        await store.append([a_batch(claim)])
    assert (await image_of(store, 0)).last_seq == 0
    intruder.execute("ROLLBACK")
    intruder.close()
    monkeypatch.undo()

    assert await store.append([a_batch(claim)]) == []


async def test_a_cancelled_append_lands_whole_or_not_at_all(store: SqlStore) -> None:
    claim = await claim_one(store)
    cancelled = 0
    for steps in range(40):
        end = (await image_of(store, 0)).last_seq
        rows = RowChanges(groups=[a_group(generation_id=end + 1)], offsets=[an_offset(0, end + 1)])
        append = asyncio.create_task(store.append([a_batch(claim, an_event(0), after=end, rows=rows)]))
        for _ in range(steps):
            await asyncio.sleep(0)
        append.cancel()
        outcome = (await asyncio.gather(append, return_exceptions=True))[0]
        cancelled += isinstance(outcome, asyncio.CancelledError)

        image = await image_of(store, 0)
        assert image.last_seq == len(await store.read_events(0, 0, 100))
        assert {image.last_seq} >= {g.generation_id for g in image.groups} | {o.offset for o in image.offsets}
        if outcome == []:
            assert image.last_seq == end + 1
    assert cancelled


async def test_a_connection_whose_opening_was_cancelled_is_closed(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread would otherwise report to an event loop that may be gone by then."""
    opening, may_open, connect = threading.Event(), threading.Event(), sqlite3.connect

    def connect_late(path: str, **options: Any) -> Any:
        opening.set()
        may_open.wait(10)
        return connect(path, **options)

    monkeypatch.setattr(sqlite3, "connect", connect_late)
    # The first has the connection that the store was opened with.
    readings = [asyncio.create_task(image_of(store, 0)) for _ in range(2)]
    assert await asyncio.to_thread(opening.wait, 5)
    for reading in readings:
        reading.cancel()
    await asyncio.gather(*readings, return_exceptions=True)

    closing = asyncio.create_task(store.close())
    done, _ = await asyncio.wait([closing], timeout=0.1)
    may_open.set()
    await closing

    assert not done
    assert [thread.name for thread in threading.enumerate() if "_connection_worker_thread" in thread.name] == []


async def test_a_value_that_the_engine_rejects_leaves_nothing(store: SqlStore) -> None:
    claim = await claim_one(store)

    for metadata, offset in (("\ud800", 1), ("", 2**70)):
        with pytest.raises(StoreUnavailable):
            await store.append([a_batch(claim, rows=RowChanges(offsets=[an_offset(0, offset, metadata=metadata)]))])

    assert (await image_of(store, 0)).last_seq == 0
    assert await store.append([a_batch(claim)]) == []


@pytest.mark.parametrize(
    "url", ["", "sqlite://", "sqlite:///", "mysql://u:secret@h/db", "/var/rota.db", "postgresql://"]
)
def test_an_invalid_store_url_is_rejected_without_quoting_it(url: str) -> None:
    with pytest.raises(StoreRefused, match="URL is sqlite:///") as refused:
        SqlStore(url)

    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "says"), [("sqlite:///a%00b.db", "zero byte"), ("sqlite:///~no-such-user/a.db", "does not know")]
)
def test_a_name_that_no_file_can_have_is_refused(url: str, says: str) -> None:
    with pytest.raises(StoreRefused, match=says):
        SqlStore(url)


def test_urls_name_files_and_databases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert parse_store_url("sqlite:///a/b.db") == SqliteLocation(tmp_path / "a" / "b.db")
    assert parse_store_url("sqlite:////var/with%20space.db") == SqliteLocation(Path("/var/with space.db"))
    assert parse_store_url("postgres://u:secret@a:1,b:2/db?sslmode=require") == PostgresLocation(
        "postgresql://u:secret@a:1,b:2/db?sslmode=require"
    )
    assert str(parse_store_url("postgresql://u:secret@a:1,b:2/db")) == "postgresql://a:1,b:2/db"
    assert PostgresLocation("postgresql://a,b@a:1,[::1]/db").dsns == [
        "postgresql://a,b@a:1/db?target_session_attrs=read-write",
        "postgresql://a,b@[::1]/db?target_session_attrs=read-write",
    ]
    assert PostgresLocation("postgresql:///db?host=/tmp").dsns == ["postgresql:///db?host=/tmp"]
    assert isinstance(parse_store_url(default_store_url()), SqliteLocation)


# --- the file ---------------------------------------------------------------------------------------


def delete(path: Path) -> None:
    path.unlink()


def replace_by_a_copy(path: Path) -> None:
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


@pytest.mark.parametrize("harm", [delete, replace_by_a_copy])
async def test_nothing_is_accepted_any_more_once_the_file_is_another(
    store: SqlStore, sqlite_url: str, harm: Callable[[Path], None]
) -> None:
    claim = await claim_one(store)
    await store.append([a_batch(claim)])

    harm(path_of(sqlite_url))

    for attempt in (
        lambda: store.append([a_batch(claim, after=1)]),
        lambda: store.renew([claim], "r-1", 60_000),
        lambda: store.register(Replica("r-1", "http://one"), 60_000),
    ):
        with pytest.raises(StoreUnavailable, match="was deleted or replaced"):
            await attempt()


async def test_a_write_while_the_file_is_deleted_is_not_accepted(store: SqlStore, sqlite_url: str) -> None:
    async def write() -> None:
        async with store._writing() as connection:
            await connection.execute(text("SELECT 1"))
            path_of(sqlite_url).unlink()

    with pytest.raises(StoreUnavailable, match="was deleted or replaced"):
        await write()


async def test_nothing_is_accepted_without_the_log_which_a_stop_saves(store: SqlStore, sqlite_url: str) -> None:
    claim = await claim_one(store)
    assert await store.append([a_batch(claim)]) == []
    Path(f"{path_of(sqlite_url)}-wal").unlink()

    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"-wal was deleted or replaced.*with SIGTERM"):
            await store.append([a_batch(claim, after=1)])
    await store.close()

    again = SqlStore(sqlite_url)
    await again.open(SHARD_COUNT)
    assert (await image_of(again, 0)).last_seq == 1
    assert not again.went_back
    await again.close()


async def test_nothing_is_written_over_what_others_wrote(store: SqlStore, sqlite_url: str) -> None:
    """Without the index of the log, which a cleaner of old files may delete, two processes do not see each other."""
    claim = await claim_one(store)
    assert await store.append([a_batch(claim)]) == []
    Path(f"{path_of(sqlite_url)}-shm").unlink()
    revoke = "UPDATE store SET created_at_ms = 7"
    subprocess.run([sys.executable, "-c", BESIDE, path_of(sqlite_url), revoke], check=True)

    with pytest.raises(StoreUnavailable, match=r"-shm was deleted or replaced.*SIGKILL"):
        await store.append([a_batch(claim, after=1)])
    killed = path_of(sqlite_url).with_name("killed.db")
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{path_of(sqlite_url)}{suffix}", f"{killed}{suffix}")

    found = "SELECT created_at_ms, last_seq FROM store, shards WHERE shard_id = 0"
    with closing(sqlite3.connect(killed)) as again:
        assert again.execute(found).fetchone() == (7, 1)


BESIDE = "import sqlite3, sys; sqlite3.connect(sys.argv[1], isolation_level=None).execute(sys.argv[2])"


async def test_the_log_is_the_same_file_whatever_connections_end(store: SqlStore, sqlite_url: str) -> None:
    await claim_one(store)
    connections = store._connections
    assert isinstance(connections, SqliteConnections)

    with Path(f"{path_of(sqlite_url)}-wal").open() as log:
        await connections._writer.close()
        for engine in (connections._readers, connections._writers):
            async with engine.connect() as connection:
                await connection.invalidate()
        assert connections._lasting is not None
        lasting = driver_of(connections._lasting)
        for drivers in connections._drivers:
            for driver in drivers._opened:
                if driver is not lasting:
                    await asyncio.to_thread(driver._thread.join, EVENTUALLY_S)

        await claim_one(store)
        assert os.fstat(log.fileno()).st_nlink == 1


async def test_a_store_that_was_deleted_is_missed_at_the_next_start(store: SqlStore, sqlite_url: str) -> None:
    path = path_of(sqlite_url)
    await store.close()
    path.unlink()

    with pytest.raises(StoreRefused, match=rf"there was a store at {path} \(incarnation \w+\), and its file is gone"):
        await upgrade(sqlite_url)
    assert not path.exists()
    path.with_name("rota.db.lock").unlink()

    assert (await upgrade(sqlite_url)).up_to_date


async def test_a_store_that_was_emptied_is_missed_at_the_next_start(store: SqlStore, sqlite_url: str) -> None:
    path = path_of(sqlite_url)
    await store.close()
    path.write_bytes(b"")

    with pytest.raises(StoreRefused, match=rf"there was a store at {path} \(incarnation \w+\), and its file is empty"):
        await upgrade(sqlite_url)
    assert path.stat().st_size == 0


async def test_a_damaged_value_is_said_without_quoting_it(store: SqlStore, sqlite_url: str) -> None:
    await store.append([a_batch(await claim_one(store))])
    for column, value in (("payload", "X'7B22'"), ("kind", "CAST(X'736563FF' AS TEXT)")):
        with closing(sqlite3.connect(path_of(sqlite_url))) as other:
            other.execute(f"UPDATE group_events SET {column} = {value}")
            other.commit()

        with pytest.raises(StoreUnavailable, match="the store is damaged, restore a backup") as failed:
            await store.read_events(0, 0, 10)
        assert "sec" not in str(failed.value)


async def test_a_lock_that_a_cleaner_deleted_is_made_again(
    store: SqlStore, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    lock = path_of(sqlite_url).with_name("rota.db.lock")
    note = lock.read_text()
    lock.unlink()

    await claim_one(store)

    assert (lock.read_text(), "was deleted or replaced" in caplog.text) == (note, True)
    with pytest.raises(StoreRefused, match="another service is using this store"):
        await SqlStore(sqlite_url).open(SHARD_COUNT)


async def test_a_lock_that_another_process_held_still_names_the_store(store: SqlStore, sqlite_url: str) -> None:
    path = path_of(sqlite_url)
    lock = path.with_name("rota.db.lock")
    note = lock.read_text()
    lock.unlink()

    with FileLock(path), pytest.raises(StoreUnavailable, match="another service is using this store"):
        await claim_one(store)
    await claim_one(store)

    assert lock.read_text() == note


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root makes files for others")
async def test_a_lock_that_root_makes_is_the_servers(store: SqlStore, sqlite_url: str) -> None:
    path = path_of(sqlite_url)
    await store.close()
    os.chown(path, 65_534, 65_534)
    path.with_name("rota.db.lock").unlink()

    await restored(sqlite_url)

    owners = {each.name: each.stat().st_uid for each in path.parent.glob("rota.db*")}
    assert owners == {"rota.db": 65_534, "rota.db.lock": 65_534}


async def test_of_two_services_that_a_deleted_lock_let_in_one_goes_on(store: SqlStore, sqlite_url: str) -> None:
    claim = await claim_one(store)
    path_of(sqlite_url).with_name("rota.db.lock").unlink()
    second = SqlStore(sqlite_url)
    await second.open(SHARD_COUNT)

    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="another service is using this store"):
            await store.append([a_batch(claim)])
    assert await second.append([a_batch(await claim_one(second))]) == []
    await second.close()

    assert await store.append([a_batch(claim)]) == [0]  # Its epoch is over.


async def test_a_file_with_two_names_is_refused(store: SqlStore, sqlite_url: str, tmp_path: Path) -> None:
    """A service on each name would not see the other one's lock."""
    (tmp_path / "second.db").hardlink_to(path_of(sqlite_url))

    with pytest.raises(StoreRefused, match="has 2 names"):
        await SqlStore(f"sqlite:///{tmp_path / 'second.db'}").open(SHARD_COUNT)


async def test_a_file_that_is_mounted_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "my store.db"
    url = f"sqlite:///{path}"
    await upgrade(url)
    mounts = tmp_path / "mountinfo"
    escaped = str(path).replace(" ", r"\040")
    mounts.write_text(f"22 27 0:21 / /proc rw - proc proc rw\n90 27 254:0 /other.db {escaped} rw - ext4 /dev/vda rw\n")
    monkeypatch.setattr("rota.storage.store_file._MOUNTS", mounts)

    with pytest.raises(StoreRefused, match="is mounted as a single file"):
        await SqlStore(url).open(SHARD_COUNT)
    mounts.write_text(f"90 27 254:0 / {escaped.rpartition('/')[0]} rw - ext4 /dev/vda rw\n")
    opened = SqlStore(url)
    await opened.open(SHARD_COUNT)
    await opened.close()


async def test_a_store_that_all_users_can_read_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url, path = f"sqlite:///{tmp_path / 'rota.db'}", tmp_path / "rota.db"
    await upgrade(url)

    for mode in (0o600, 0o640, 0o644):
        path.chmod(mode)
        store = SqlStore(url)
        await store.open(SHARD_COUNT)
        await store.close()

    (reported,) = [record.getMessage() for record in caplog.records if "can read the store" in record.getMessage()]
    assert str(path) in reported


async def test_the_files_of_a_new_store_are_for_its_owner_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rota.db'}"
    await upgrade(url)
    store = SqlStore(url)
    await store.open(SHARD_COUNT)
    await claim_one(store)

    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}

    assert modes == dict.fromkeys(("rota.db", "rota.db-wal", "rota.db-shm", "rota.db.lock"), 0o600)
    await store.close()


async def test_the_log_is_short_again_after_a_long_read(store: SqlStore, sqlite_url: str) -> None:
    path = path_of(sqlite_url)
    log, value = Path(f"{path}-wal"), "x" * 4_000_000
    with closing(sqlite3.connect(path, isolation_level=None)) as reader, closing(sqlite3.connect(path)) as other:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM shards").fetchall()
        for _ in range(8):
            other.execute("CREATE TABLE IF NOT EXISTS big (bytes)")
            other.execute("INSERT INTO big VALUES (?)", (value,))
            other.commit()
        assert log.stat().st_size > 30_000_000
        reader.execute("ROLLBACK")

        claim = await claim_one(store)
        await store.append([a_batch(claim)])

        assert log.stat().st_size <= 16 * 1_048_576
