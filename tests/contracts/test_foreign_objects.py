"""What is not Rota's own in a store: found by a check, refused by a restore, and never run."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sqlite3
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

import rota
from rota.core.replica.ports import StoreRefused
from rota.storage.backup import backup, restore
from rota.storage.backup_files import manifest_of, read_manifest
from rota.storage.migrate import check, migrations_folder, single_engine
from rota.storage.objects import RELEASED, check_objects, differences, read_objects
from rota.storage.schema import metadata_for
from rota.storage.urls import parse_store_url
from tests.contracts.builders import image_of
from tests.contracts.restorable import append, claimed, opened, stop
from tests.support.directories import open_to_everyone
from tests.support.postgres import PostgresServer, binary

SEED = 20_261_128
MADE = json.loads((migrations_folder() / RELEASED).read_text())
EVENTS = ("INSERT", "UPDATE", "DELETE")
NOTHING_RUNS = "BEGIN SELECT 1; END"
ON_SQLITE = {
    "trigger": "CREATE TRIGGER odd AFTER {event} ON {table} " + NOTHING_RUNS,
    "trigger before": "CREATE TRIGGER odd BEFORE {event} ON {table} " + NOTHING_RUNS,
    "index": "CREATE INDEX odd ON {table} ({column})",
    "index by a function": "CREATE INDEX odd ON {table} (lower({column}))",
    "column": "ALTER TABLE {table} ADD COLUMN odd TEXT DEFAULT 'x'",
    "lost table": "DROP TABLE {table}",
}
ALONE_ON_SQLITE = {
    "table": "CREATE TABLE odd (id INTEGER)",
    "view": "CREATE VIEW odd AS SELECT 1",
    "virtual table": "CREATE VIRTUAL TABLE odd USING fts5(body)",
    "other index": "DROP INDEX groups_by_name;; CREATE INDEX groups_by_name ON groups (group_id)",
}
_TRIGGER = "CREATE TRIGGER odd {timing} {event} ON {table} EXECUTE FUNCTION suppress_redundant_updates_trigger()"
ON_POSTGRES = {
    "trigger": _TRIGGER.replace("{timing}", "AFTER"),
    "trigger before": _TRIGGER.replace("{timing}", "BEFORE"),
    "rule": "CREATE RULE odd AS ON {event} TO {table} DO ALSO NOTHING",
    "index": "CREATE INDEX odd ON {table} ({column})",
    "column": "ALTER TABLE {table} ADD COLUMN odd text",
    "default": "ALTER TABLE {table} ALTER {column} SET DEFAULT 1",
    "constraint": "ALTER TABLE {table} ADD CONSTRAINT odd CHECK ({column} IS NOT NULL)",
    "row security": "ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
    "policy": "CREATE POLICY odd ON {table} USING (true)",
    "part": "CREATE TABLE public.odd () INHERITS ({table})",
    "lost table": "DROP TABLE {table} CASCADE",
}
ALONE_ON_POSTGRES = {
    "table": "CREATE TABLE rota.odd (id int)",
    "unlogged": "ALTER TABLE rota.tokens SET UNLOGGED",
    "view": "CREATE VIEW rota.odd AS SELECT 1",
    "materialized view": "CREATE MATERIALIZED VIEW rota.odd AS SELECT 1",
    "sequence": "CREATE SEQUENCE rota.odd",
    "function": "CREATE FUNCTION rota.odd() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "procedure": "CREATE PROCEDURE rota.odd() LANGUAGE sql AS 'SELECT 1'",
    "aggregate": "CREATE AGGREGATE rota.odd(int) (SFUNC = int4pl, STYPE = int)",
    "other body": "CREATE OR REPLACE FUNCTION rota.check_role(of_namespace text) RETURNS void LANGUAGE sql AS ''",
    "other rights": "ALTER FUNCTION rota.check_role(text) SECURITY DEFINER",
    "other settings": "ALTER FUNCTION rota.fence_at_commit() RESET search_path",
    "trigger that is off": "ALTER TABLE rota.fence_checks DISABLE TRIGGER fence_at_commit",
    "enum": "CREATE TYPE rota.odd AS ENUM ('a')",
    "domain": "CREATE DOMAIN rota.odd AS int",
    "type of rows": "CREATE TYPE rota.odd AS (a int)",
    "operator": "CREATE OPERATOR rota.=== (LEFTARG = int, RIGHTARG = int, FUNCTION = int4eq)",
    "collation": 'CREATE COLLATION rota.odd FROM "C"',
    "statistics": "CREATE STATISTICS rota.odd ON shard_id, seq FROM rota.group_events",
    "text search": "CREATE TEXT SEARCH CONFIGURATION rota.odd (COPY = simple)",
    "default rights": "ALTER DEFAULT PRIVILEGES IN SCHEMA rota GRANT SELECT ON TABLES TO PUBLIC",
    "foreign key": "CREATE TABLE public.odd (id int REFERENCES rota.store (id))",
}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(autouse=True)
def _programs_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{binary('pg_dump').parent}{os.pathsep}{os.environ['PATH']}")


def planted(engine: str) -> Iterator[str]:
    """Statements, each of which makes or changes one object: each kind on each table, and those that have none."""
    draw = random.Random(SEED)
    on_a_table = ON_SQLITE if engine == "sqlite" else ON_POSTGRES
    for template in on_a_table.values():
        for name, table in sorted(metadata_for(engine).tables.items()):
            column, event = draw.choice([each.name for each in table.columns]), draw.choice(EVENTS)
            yield template.format(table=name, event=event, column=f'"{column}"')
    yield from (ALONE_ON_SQLITE if engine == "sqlite" else ALONE_ON_POSTGRES).values()


# --- a store that is in use -------------------------------------------------------------------------


async def test_a_store_of_this_release_has_its_objects(url: str) -> None:
    """After a migration, write the list again: `python -m tests.contracts.released_objects`."""
    assert await check_objects(url) == []


@pytest.mark.thorough
async def test_each_kind_of_foreign_object_is_found(url: str) -> None:
    engine = "sqlite" if url.startswith("sqlite") else "postgresql"
    used = single_engine(parse_store_url(url), writes=True)
    outcomes = Counter[str]()
    for statement in planted(engine):
        outcomes[await _outcome(used, statement)] += 1
    await used.dispose()

    missed = {statement: count for statement, count in outcomes.items() if statement not in ("found", "impossible")}
    assert missed == {}
    assert outcomes["found"] > 50 + 9 * outcomes["impossible"]


async def _outcome(used: AsyncEngine, planting: str) -> str:
    """Plant an object in a transaction that is rolled back: `found`, or `impossible`, or the statement."""
    async with used.connect() as connection:
        try:
            for statement in planting.split(";; "):
                await connection.execute(text(statement))
        except DBAPIError:  # A trigger before the rows of a view, a part of a partitioned table.
            return "impossible"
        found = differences(await read_objects(connection), MADE[connection.dialect.name])
        await connection.rollback()
    return "found" if found else planting


# --- a backup -----------------------------------------------------------------------------------------


@pytest.fixture
async def stopped(url: str) -> str:
    """The URL of a store that no server uses, with a group in generation 3."""
    store = await opened(url)
    await append(store, await claimed(store), 3, 7)
    await stop(store)
    return url


async def planted_in(url: str, planting: str) -> None:
    used = single_engine(parse_store_url(url), writes=True)
    async with used.begin() as connection:
        for statement in planting.split(";; "):
            await connection.execute(text(statement))
    await used.dispose()


PLANTED = {
    "sqlite": ("trigger", "column", "other index"),
    "postgres": ("trigger", "column", "function", "other body"),
}


BY_THE_MANIFEST = {"sqlite": (), "postgres": ("column", "other body")}
"""A dump's definitions are not used, and not compared."""


@pytest.mark.parametrize(
    ("url", "kind"),
    [(engine, kind) for engine, kinds in PLANTED.items() for kind in kinds],
    indirect=["url"],
)
async def test_a_backup_with_a_foreign_object_is_refused(stopped: str, kind: str, tmp_path: Path) -> None:
    engine = "sqlite" if stopped.startswith("sqlite") else "postgres"
    kinds = ON_SQLITE | ALONE_ON_SQLITE if engine == "sqlite" else ON_POSTGRES | ALONE_ON_POSTGRES
    table = "tokens" if engine == "sqlite" else "rota.tokens"
    planting = kinds[kind].format(table=table, event="UPDATE", column="note")
    await planted_in(stopped, planting)
    file = await backup(stopped, tmp_path / "copy")
    names = {"other index": "INDEX groups_by_name", "other body": "FUNCTION check_role", "column": "TABLE tokens"}

    says = rf"{names.get(kind, 'odd')}.* Rota .*Nothing was changed"
    with pytest.raises(StoreRefused, match=says):
        await restore(stopped, file)
    if kind not in BY_THE_MANIFEST[engine]:
        manifest_of(file).unlink()
        with pytest.raises(StoreRefused, match=says):
            await restore(stopped, file)

    assert (await check_objects(stopped)) != []  # The store that is there stays.


async def test_a_trigger_that_keeps_a_token_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    """Planted in the file of the backup, with a digest that fits."""
    await (await opened(sqlite_url)).close()
    file = await backup(sqlite_url, tmp_path / "copy")
    with closing(sqlite3.connect(file)) as copy:
        copy.execute(
            "CREATE TRIGGER keep AFTER UPDATE OF revoked_at_ms ON tokens BEGIN"
            " UPDATE tokens SET revoked_at_ms = NULL WHERE token_id = new.token_id; END"
        )
    with pytest.raises(StoreRefused, match="was changed after it was made: its SHA-256"):
        await restore(sqlite_url, file)
    sign_again(file)

    with pytest.raises(StoreRefused, match="TRIGGER keep, which Rota does not make"):
        await restore(sqlite_url, file)

    assert await check_objects(sqlite_url) == []


def sign_again(file: Path) -> None:
    """What the manifest cannot protect against: a caller that may write both files."""
    manifest = json.loads(manifest_of(file).read_text())
    manifest["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    manifest_of(file).write_text(json.dumps(manifest))


async def test_a_changed_row_of_a_backup_is_refused(stopped: str, tmp_path: Path) -> None:
    """At any place of the file, and if it is cut or longer."""
    file = await backup(stopped, tmp_path / "copy")
    whole, draw = file.read_bytes(), random.Random(SEED)
    for _ in range(40):
        changed = bytearray(whole)
        changed[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        file.write_bytes(changed)
        with pytest.raises(StoreRefused, match="was changed after it was made"):
            await restore(stopped, file)
    for other in (whole[:-1], whole + b"\0", b""):
        file.write_bytes(other)
        with pytest.raises(StoreRefused, match="was changed after it was made"):
            await restore(stopped, file)
    file.write_bytes(whole)
    (tmp_path / "latest").symlink_to(file)
    manifest_of(file).write_text("[]")
    for name in ("copy", "latest"):
        with pytest.raises(StoreRefused, match="no manifest of a backup"):
            await restore(stopped, tmp_path / name)


async def test_a_manifest_says_what_a_backup_is(stopped: str, tmp_path: Path) -> None:
    store = await opened(stopped)
    await stop(store)

    file = await backup(stopped, tmp_path / "copy")

    manifest = read_manifest(file)
    assert manifest is not None
    assert manifest["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (manifest["release"], manifest["incarnation"]) == (rota.__version__, store.incarnation)
    assert manifest["schema"] == (await check(stopped)).current
    assert (manifest["foreign_objects"], manifest_of(file).stat().st_mode & 0o777) == ([], 0o600)


# --- a dump that would run something ------------------------------------------------------------------


class Dump:
    """A dump of `rota` by `pg_dump` itself, without a manifest; its programs would write the file `ran`."""

    def __init__(self, url: str, server: PostgresServer, folder: Path) -> None:
        self.server, self.url, self.file, self.ran = server, url, folder / "copy.dump", folder / "ran"
        folder.chmod(0o777)

    @property
    def program(self) -> str:
        return f"COPY (SELECT 1) TO PROGRAM 'cat > {self.ran}'"

    def execute(self, statement: str) -> None:
        self.server.execute(statement, database=self.url.rpartition("/")[2])

    def write(self) -> None:
        subprocess.run(
            [binary("pg_dump"), "--format=custom", "--compress=0", "--schema=rota", f"--file={self.file}", self.url],
            check=True,
        )

    def replace(self, former: bytes, new: bytes) -> None:
        """Change the dump's bytes; its strings have their lengths before them."""
        written = self.file.read_bytes()
        assert written.count(former) == 1
        self.file.write_bytes(written.replace(former, new.ljust(len(former))))


@pytest.fixture
async def dump(postgres_url: str, postgres_server: PostgresServer) -> AsyncIterator[Dump]:
    store = await opened(postgres_url)
    await append(store, await claimed(store), 3, 7)
    await stop(store)
    with TemporaryDirectory() as folder:
        open_to_everyone(Path(folder))
        yield Dump(postgres_url, postgres_server, Path(folder))


async def test_a_trigger_of_a_dump_never_runs_a_program(dump: Dump) -> None:
    dump.execute(
        "CREATE FUNCTION rota.evil() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$BEGIN {dump.program}; RETURN NEW; END$$;"
        "CREATE TRIGGER evil AFTER INSERT OR UPDATE ON rota.store FOR EACH ROW EXECUTE FUNCTION rota.evil();"
        "ALTER TABLE rota.store ENABLE ALWAYS TRIGGER evil"
    )
    dump.write()
    dump.execute("UPDATE rota.store SET id = 1")
    assert dump.ran.exists()  # The program would run.
    dump.ran.unlink()

    with pytest.raises(StoreRefused, match=r"it has the FUNCTION evil\(\), .* it has the TRIGGER store evil, which"):
        await restore(dump.url, dump.file)

    assert not dump.ran.exists()


async def test_a_released_function_with_another_body_is_not_restored(dump: Dump) -> None:
    dump.execute(
        "CREATE OR REPLACE FUNCTION rota.timeline() RETURNS text LANGUAGE plpgsql AS"
        f" $$BEGIN {dump.program}; RETURN 'x'; END$$"
    )
    dump.write()

    await restore(dump.url, dump.file)

    assert (await check_objects(dump.url), dump.ran.exists()) == ([], False)
    again = await opened(dump.url)
    assert (await image_of(again, 0)).groups[0].generation_id == 3
    await again.close()


@pytest.mark.parametrize(
    "statement",
    ["COPY rota.store FROM PROGRAM 'touch {ran}';\n", "COPY(SELECT 1)TO PROGRAM 'touch {ran}';\n", "\\! touch {ran}\n"],
)
async def test_a_statement_among_the_rows_is_refused(dump: Dump, statement: str) -> None:
    """In place of the statement that a dump has for a table's rows, behind a name that is known."""
    dump.write()
    columns = b"shard_id, replica_id, address, epoch, lease_until_ms, last_seq, first_seq, claimed_epoch, claimed_seq"
    copy = b"COPY rota.shards (" + columns + b", timeline, generation_floor, epoch_floor) FROM stdin;\n"
    dump.replace(copy, statement.format(ran=dump.ran).encode())

    with pytest.raises(StoreRefused, match="holds a line that is no row"):
        await restore(dump.url, dump.file)

    assert not dump.ran.exists()


async def test_rows_that_end_early_run_nothing(dump: Dump) -> None:
    r"""`psql` would take the lines behind `\.` for commands."""
    note = "x" * 200
    dump.execute(f"INSERT INTO rota.tokens VALUES ('a', 'b', 'c', '[]', 1, NULL, NULL, '{note}', NULL)")
    dump.write()
    dump.replace(note.encode(), f"\n\\.\n\\! touch {dump.ran}\n".encode())

    with pytest.raises(StoreRefused, match=r"tables refuse|no row"):
        await restore(dump.url, dump.file)

    assert not dump.ran.exists()


async def test_a_restored_store_keeps_its_owner_and_rights(dump: Dump) -> None:
    """Those of the store that was there, and fences by their table."""
    owner, reader, worker = (f"{name}_{dump.url.rpartition('_')[2]}" for name in ("owner", "reader", "worker"))
    dump.execute(f"CREATE ROLE {owner}; CREATE ROLE {reader}; CREATE ROLE {worker}; ALTER SCHEMA rota OWNER TO {owner}")
    dump.execute(f"GRANT USAGE ON SCHEMA rota TO {reader}; GRANT SELECT ON rota.tokens TO {reader}")
    dump.execute(f"SELECT rota.grant_fences('{worker}', 'default')")
    dump.write()

    empty = dump.server.create_database()

    await restore(dump.url, dump.file)
    await restore(empty, dump.file)

    asked = (
        f"SELECT tableowner, has_table_privilege('{reader}', 'rota.tokens', 'SELECT'), has_table_privilege('{reader}',"
        f" 'rota.tokens', 'UPDATE'), has_function_privilege('{worker}', 'rota.assert_token(text, text, bigint, text)',"
        " 'EXECUTE') FROM pg_tables WHERE schemaname = 'rota' AND tablename = 'tokens'"
    )
    found = [dump.server.execute(asked, database=url.rpartition("/")[2]).strip() for url in (dump.url, empty)]
    assert found == [f"{owner}|t|f|t", "postgres|f|f|t"]
    dump.server.drop_database(empty.rpartition("/")[2])
    dump.execute(f"DROP OWNED BY {owner}, {reader}, {worker} CASCADE; DROP ROLE {owner}, {reader}, {worker}")
