"""Backups on both engines: one moment of the store, put back whole, and no number granted again that was granted."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from rota.core.group.rows import RowChanges
from rota.core.replica.ports import Replica, StoreRefused
from rota.pipeline.failures import WrongIncarnation
from rota.pipeline.journal import Position, open_journal
from rota.storage.backup import backup, restore
from rota.storage.backup_postgres import connection_of
from rota.storage.pruning import list_readers
from rota.storage.restored import Lost, LostCommit, LostGroup, restored
from rota.storage.store import SqlStore
from rota.storage.urls import PostgresLocation, parse_store_url
from tests.contracts.builders import a_batch, a_group, an_offset, image_of
from tests.contracts.conftest import SHARD_COUNT
from tests.contracts.restorable import append, claimed, opened, path_of, stop
from tests.support.postgres import PostgresServer, binary

MAX_INT32 = 2**31 - 1


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.thorough)])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(autouse=True)
def _programs_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{binary('pg_dump').parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    """An open store with a shard 0 that has a group in generation 3."""
    store = SqlStore(url)
    await store.open(SHARD_COUNT)
    await append(store, await claimed(store), 3, 7)
    yield store
    await store.close()


# --- a backup, and a restore of it ------------------------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
async def test_a_restored_store_grants_nothing_that_it_granted(store: SqlStore, url: str, tmp_path: Path) -> None:
    file = await backup(url, tmp_path / "copy")
    later = await claimed(store)
    await append(store, later, 41, 99, after=1)
    await stop(store)

    done = await restore(url, file, raise_by=10)

    again = await opened(url)
    image, claim, other = await image_of(again, 0), await claimed(again), await claimed(again, 5)
    assert (image.last_seq, image.groups[0].generation_id, image.offsets[0].offset) == (1, 3, 7)
    assert (claim.generation_floor, other.generation_floor) == (51, 51)  # Shard 5 had no replica before the backup.
    assert min(claim.epoch, other.epoch) > later.epoch + 1_000
    assert again.incarnation == done.restored.incarnation != store.incarnation
    assert not again.went_back
    await again.close()


async def test_a_restore_lists_what_is_lost(store: SqlStore, url: str, tmp_path: Path) -> None:
    file = await backup(url, tmp_path / "copy")
    claim = await claimed(store)
    added = RowChanges(groups=[a_group("new", generation_id=1)], offsets=[an_offset(1, 5)])
    await store.append([a_batch(claim, after=1, rows=added)])
    await append(store, claim, 41, 99, after=2)
    await stop(store)

    done = await restore(url, file)

    g = ("default", "g", "documents")
    assert done.restored.lost == Lost(
        (LostGroup("default", "g", 41, 3), LostGroup("default", "new", 1, 0)),
        (LostCommit(*g, 0, 99, 7), LostCommit(*g, 1, 5, None)),
        (),
    )
    assert (done.restored.shards[0].last_seq, done.restored.shards[0].former_last_seq) == (1, 3)


async def test_the_store_that_was_there_is_kept(
    store: SqlStore, url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file = await backup(url, tmp_path / "copy")
    await append(store, await claimed(store), 41, 99, after=1)
    await stop(store)

    kept_as = (await restore(url, file)).kept_as

    question = "SELECT max(generation_id) FROM groups"
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(kept_as)) as former:
            assert former.execute(question).fetchone() == (41,)
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        asked = question.replace("groups", f"{kept_as}.groups")
        assert server.execute(asked, database=url.rpartition("/")[2]).strip() == "41"


async def test_a_backup_is_restored_where_there_is_no_store(
    store: SqlStore, url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file = await backup(url, tmp_path)
    if url.startswith("sqlite"):
        elsewhere = f"sqlite:///{tmp_path / 'new' / 'folder' / 'rota.db'}"
    else:
        elsewhere = request.getfixturevalue("postgres_dsn")

    done = await restore(elsewhere, file)

    again = await opened(elsewhere)
    assert (done.kept_as, done.restored.lost) == ("", None)
    assert (await claimed(again)).generation_floor == 1_000_003
    assert (file.stat().st_mode & 0o777, file.suffix) == (0o600, ".db" if url.startswith("sqlite") else ".dump")
    await again.close()


async def test_no_restore_while_a_server_runs(store: SqlStore, url: str, tmp_path: Path) -> None:
    file = await backup(url, tmp_path / "copy")
    await store.register(Replica("r-1", "http://one"), 60_000)

    with pytest.raises(StoreRefused, match=r"another service is using this store|a server may be using .*r-1"):
        await restore(url, file)

    await append(store, await claimed(store), 4, 8, after=1)


async def test_a_backup_never_takes_the_place_of_a_file(store: SqlStore, url: str, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")

    for name, says in (("there", "is there already"), ("link", "is there already"), ("no/folder/x", "no folder")):
        with pytest.raises(StoreRefused, match=says):
            await backup(url, tmp_path / name)

    assert (tmp_path / "there").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()
    assert not list(tmp_path.glob(".*"))  # Nothing is left of the attempt.


async def test_a_backup_that_was_killed_stops_no_other(store: SqlStore, url: str, tmp_path: Path) -> None:
    """In containers the next one has the same process id."""
    (tmp_path / f".copy.{os.getpid()}.partial").touch()

    assert (await backup(url, tmp_path / "copy")).stat().st_size


async def test_a_file_system_without_hard_links_will_do(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links here")

    await (await opened(sqlite_url)).close()
    monkeypatch.setattr(os, "link", refuse)

    file = await backup(sqlite_url, tmp_path / "copy")

    assert file.read_bytes().startswith(b"SQLite format 3")
    with pytest.raises(StoreRefused, match="is there already"):
        await backup(sqlite_url, tmp_path / "copy")


async def test_no_raise_beyond_the_last_generation(store: SqlStore, url: str, tmp_path: Path) -> None:
    file = await backup(url, tmp_path / "copy")
    await stop(store)

    with pytest.raises(StoreRefused, match="use up the generations"):
        await restore(url, file, raise_by=MAX_INT32 - 3)
    with pytest.raises(StoreRefused, match="use up the generations"):
        await restored(url, raise_by=MAX_INT32 - 3)

    again = await opened(url)
    assert (again.incarnation, (await claimed(again)).generation_floor) == (store.incarnation, 0)
    await again.close()


async def test_what_is_no_backup_replaces_nothing(store: SqlStore, url: str, tmp_path: Path) -> None:
    whole = await backup(url, tmp_path / "whole")
    await stop(store)
    cut, text = tmp_path / "cut", tmp_path / "text"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
    text.write_text("not a database, but long enough to be looked at " * 200)
    says = "is damaged|cannot be copied|is no store|is no whole dump"

    for source in (cut, text, tmp_path / "nothing", tmp_path):
        with pytest.raises(StoreRefused, match=rf"{says}|there is no backup"):
            await restore(url, source)

    again = await opened(url)
    assert (again.incarnation, (await image_of(again, 0)).last_seq) == (store.incarnation, 1)
    await again.close()


async def test_a_backup_of_a_later_release_is_refused(
    store: SqlStore, url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    await stop(store)
    later = "UPDATE alembic_version SET version_num = '9999'"
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(path_of(url))) as connection, connection:
            connection.execute(later)
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        server.execute(later.replace("alembic", "rota.alembic"), database=url.rpartition("/")[2])
    file = await backup(url, tmp_path / "copy")

    with pytest.raises(StoreRefused, match="made by a later release"):
        await restore(url, file)


# --- a store that was brought back by other means ---------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
async def test_restored_ends_what_was_and_raises_every_shard(store: SqlStore, url: str) -> None:
    former = await claimed(store)
    await stop(store)

    done = await restored(url, raise_by=1_000)

    again = await opened(url)
    # The note beside an embedded store knows the highest generation, but not of which shard.
    assert {shard.generation_floor for shard in done.shards} - {1_000} == {1_003}
    assert len(done.shards) == SHARD_COUNT
    assert (done.lost, done.incarnation) == (None, again.incarnation)
    assert await again.renew([replace(former, epoch=former.epoch)], "r-1", 1_000) == []
    (claim,) = await again.claim([0], "r-2", "http://two", 60_000)
    assert (claim.generation_floor, claim.is_other_timeline) == (1_003, False)
    await again.close()


async def test_restored_waits_for_no_server_but_says_so(postgres_url: str) -> None:
    store = await opened(postgres_url)
    await store.register(Replica("r-9", "http://nine"), 60_000)
    claim = await claimed(store)

    with pytest.raises(StoreRefused, match=r"\(r-1, r-9\)\. Stop all servers"):
        await restored(postgres_url)
    assert len(await store.renew([claim], "r-1", 60_000)) == 1
    await restored(postgres_url, force=True)

    assert await store.renew([claim], "r-1", 60_000) == []
    await store.close()


async def test_restored_passes_a_former_store_that_is_known(
    store: SqlStore, url: str, sqlite_template: bytes, tmp_path: Path
) -> None:
    """Any store that can be read will do."""
    former_url = f"sqlite:///{tmp_path / 'former.db'}"
    (tmp_path / "former.db").write_bytes(sqlite_template)
    former = await opened(former_url)
    await append(former, await claimed(former), 2_000_000, 99)
    await former.close()
    await stop(store)

    done = await restored(url, raise_by=1, former_url=former_url)

    assert min(shard.generation_floor for shard in done.shards) > 2_000_000
    assert done.lost is not None
    assert [commit.lost for commit in done.lost.commits] == [99]
    with pytest.raises(StoreRefused, match="not the store that was restored"):
        await restored(url, former_url=url)


async def test_a_store_that_no_server_opened_has_nothing_to_raise(url: str) -> None:
    with pytest.raises(StoreRefused, match="no server ever opened"):
        await restored(url)


async def test_readers_of_the_journal_see_another_one(store: SqlStore, url: str) -> None:
    journal = open_journal(url)
    read = journal.heads().end
    journal.bookmark("pipeline", read)
    await stop(store)

    done = await restored(url)

    (reader,) = await list_readers(url)
    assert (reader.other_journal, reader.unread, reader.read(0)) == (True, 1, 0)
    with pytest.raises(WrongIncarnation, match=f"this journal is {done.incarnation}, but the lines read before are of"):
        journal.heads().check(read)
    journal.heads().check(Position(done.incarnation, {}))  # Another folder of tables begins anew.
    journal.bookmark("pipeline", journal.heads().end)
    (reader,) = await list_readers(url)
    assert (reader.other_journal, reader.unread) == (False, 0)


# --- Postgres and its programs ----------------------------------------------------------------------


async def test_programs_that_are_missing_are_named(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await (await opened(postgres_url)).close()
    monkeypatch.setenv("PATH", "")
    source = Path(__file__)

    with pytest.raises(StoreRefused, match="pg_dump is not on PATH: install PostgreSQL's client programs"):
        await backup(postgres_url, source.with_name("copy"))
    with pytest.raises(StoreRefused, match="pg_restore is not on PATH"):
        await restore(postgres_url, source)


@pytest.mark.thorough
@pytest.mark.parametrize("setting", ["client_encoding = LATIN1", "transaction_timeout = 500"])
async def test_a_backup_takes_no_setting_of_the_database(
    postgres_url: str, postgres_server: PostgresServer, tmp_path: Path, setting: str
) -> None:
    await (await opened(postgres_url)).close()
    postgres_server.execute(f'ALTER DATABASE "{postgres_url.rpartition("/")[2]}" SET {setting}')
    slow = tmp_path / "pg_dump"
    slow.write_text(f'#!/bin/sh\nsleep 0.6\nexec {binary("pg_dump")} "$@"\n')
    slow.chmod(0o700)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        file = await backup(postgres_url, tmp_path / "copy")

    assert (await restore(postgres_url, file)).kept_as.startswith("rota_before_")


@pytest.mark.thorough
async def test_a_dump_of_a_whole_database_is_refused(
    postgres_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    postgres_server.execute("CREATE TABLE public.mine (id int)", database=postgres_url.rpartition("/")[2])
    whole = tmp_path / "whole.dump"
    subprocess.run([binary("pg_dump"), "--format=custom", f"--file={whole}", postgres_url], check=True)

    with pytest.raises(StoreRefused, match=r"it has the TABLE public\.mine, which Rota does not make"):
        await restore(postgres_url, whole)


@pytest.mark.thorough
async def test_a_role_that_the_server_lacks_is_not_needed(
    postgres_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    store = await opened(postgres_url)
    database = postgres_url.rpartition("/")[2]
    postgres_server.execute("CREATE ROLE visitor", database=database)
    postgres_server.execute("SELECT rota.grant_fences('visitor', '*')", database=database)
    file = await backup(postgres_url, tmp_path / "copy")
    postgres_server.execute("DROP OWNED BY visitor; DROP ROLE visitor", database=database)
    await stop(store)

    await restore(postgres_url, file)

    await (await opened(postgres_url)).close()


@pytest.mark.parametrize(
    "dsn",
    ["postgresql://u:p%40ss@a:1,b:2/db?sslmode=require", "postgresql://u@a:1,b:2/db?password=p%40ss&sslmode=require"],
)
def test_a_password_is_not_in_a_command_line(dsn: str) -> None:
    location = parse_store_url(dsn)
    assert isinstance(location, PostgresLocation)

    shown, environment = connection_of(location)

    assert shown == "postgresql://u@a:1,b:2/db?sslmode=require&target_session_attrs=read-write"
    assert environment["PGPASSWORD"] == "p@ss"


def test_a_socket_is_named_as_the_programs_read_it() -> None:
    shown, _ = connection_of(PostgresLocation("postgresql:///rota?host=/run"))

    assert shown == "postgresql:///rota?host=/run"


def test_a_password_file_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "password"
    location = PostgresLocation("postgresql://u@a/db", file)
    for password in ("first", "second"):
        file.write_text(f"{password}\n")
        assert connection_of(location)[1]["PGPASSWORD"] == password
    assert json.dumps(connection_of(location)[0]) == '"postgresql://u@a/db"'
