"""Reading a journal without Spark: its lines, missing lines, permissions, and lines that no cursor may overlook."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import astuple
from pathlib import Path

import asyncpg
import pytest

from rota.core.group.rows import RowChanges
from rota.core.replica.ports import JournalEvent, ShardBatch
from rota.demo.workload.generate import generate
from rota.pipeline.failures import JournalRefused, JournalUnreachable, LinesMissing, WrongIncarnation
from rota.pipeline.journal import (
    Journal,
    Position,
    Span,
    Wanted,
    check_schema,
    cut,
    open_journal,
    packed,
    spans_between,
)
from rota.pipeline.tables import Line, lines_of
from rota.storage.migrate import upgrade
from rota.storage.store import SqlStore
from tests.pipeline.journals import UNTIL_MS, fleet, simulated, sqlite_store
from tests.support.postgres import PostgresServer


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return sqlite_store(tmp_path / "rota.db", simulated(1))


def read_all(journal: Journal, wanted: Wanted | None = None) -> list[Line]:
    heads = journal.heads()
    spans = spans_between(heads.start, heads.end)
    return [line for batch in journal.batches(spans, wanted or Wanted()) for line in lines_of(batch)]


def test_every_line_of_a_file_is_read_as_it_is(sqlite_url: str) -> None:
    assert sorted(read_all(open_journal(sqlite_url))) == sorted(simulated(1))


def test_both_engines_give_the_same_lines(postgres_url: str, tmp_path: Path) -> None:
    in_file = f"sqlite:///{tmp_path / 'rota.db'}"
    generate(fleet(in_file), processes=1)

    assert sorted(read_all(open_journal(postgres_url))) == sorted(read_all(open_journal(in_file)))


def test_conditions_are_left_to_the_store(postgres_url: str, sqlite_url: str) -> None:
    for url in (postgres_url, sqlite_url):
        everything = read_all(open_journal(url))
        group = next(line for line in everything if line.kind == "generation_completed")
        kinds = Wanted(kinds=("generation_completed", "it's none"), groups=((group.namespace, group.group_id),))

        found = read_all(open_journal(url), kinds)

        assert sorted(found) == sorted(x for x in everything if x.kind == group.kind and x.group_id == group.group_id)


def test_columns_that_nobody_wants_are_not_asked_for(postgres_url: str, postgres_server: PostgresServer) -> None:
    database = postgres_url.rpartition("/")[2]
    for statement in (
        f"CREATE ROLE narrow_{database} LOGIN",
        f"GRANT USAGE ON SCHEMA rota TO narrow_{database}",
        f"GRANT SELECT ON rota.shards, rota.store TO narrow_{database}",
        f"GRANT SELECT (shard_id, seq, kind) ON rota.group_events TO narrow_{database}",
    ):
        postgres_server.execute(statement, database=database)
    journal = open_journal(postgres_url.replace("postgres@", f"narrow_{database}@"))
    heads = journal.heads()
    spans = spans_between(heads.start, heads.end)

    kinds = [batch.column("kind") for batch in journal.batches(spans, Wanted(("kind",)))]

    assert sum(map(len, kinds)) == sum(heads.last_seq.values())
    with pytest.raises(JournalRefused, match="no right to read the journal"):
        list(journal.batches(spans, Wanted(("kind", "payload"))))


def test_the_least_and_the_greatest_numbers_are_read_as_they_are(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    numbers = {1: (1, -(2**31)), 2: (2**31 - 1, 2**31 - 1), 3: (2**31 - 1, -1), 4: (0, 0)}
    for seq, (epoch, generation_id) in numbers.items():
        change = f"UPDATE rota.group_events SET epoch = {epoch}, generation_id = {generation_id}"
        where = f"WHERE shard_id = 1 AND seq = {seq}"
        postgres_server.execute(f"{change} {where}", database=postgres_url.rpartition("/")[2])

    lines = open_journal(postgres_url).batches([Span(1, 1, 4)], Wanted())

    found = {line.seq: (line.shard_id, line.epoch, line.generation_id) for batch in lines for line in lines_of(batch)}
    assert found == {seq: (1, *pair) for seq, pair in numbers.items()}


def test_texts_of_any_length_are_read_as_they_are(postgres_url: str, postgres_server: PostgresServer) -> None:
    texts = "payload = repeat(chr(8364), seq::int - 1), reason = repeat('é', seq::int % 3), group_id = repeat('g', 249)"
    change(f"SET {texts} WHERE shard_id = 1", postgres_url, postgres_server)

    lines = [line for line in read_all(open_journal(postgres_url)) if line.shard_id == 1]

    assert len(lines) > 500
    assert {line.group_id for line in lines} == {"g" * 249}
    assert all(line.payload == "€" * (line.seq - 1) and line.reason == "é" * (line.seq % 3) for line in lines)


def test_lines_with_long_payloads_are_read(postgres_url: str, postgres_server: PostgresServer) -> None:
    journal = open_journal(postgres_url)
    before = read_all(journal)
    change("SET payload = repeat('ü', 50000 + seq::int) WHERE seq % 7 = 0", postgres_url, postgres_server)
    spans = spans_between(journal.heads().start, journal.heads().end)

    batches = list(journal.batches(spans, Wanted()))

    lines = [line for batch in batches for line in lines_of(batch)]
    assert sorted(lines) == sorted(
        line._replace(payload="ü" * (50_000 + line.seq)) if line.seq % 7 == 0 else line for line in before
    )
    assert max(batch.nbytes for batch in batches) < 32 * 1024 * 1024


def change(what: str, url: str, server: PostgresServer) -> None:
    """Change lines of the journal behind the service's back."""
    server.execute(f"UPDATE rota.group_events {what}", database=url.rpartition("/")[2])


def test_lines_that_are_gone_are_named(sqlite_url: str) -> None:
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("DELETE FROM group_events WHERE shard_id = 1 AND seq BETWEEN 20 AND 30")

    with pytest.raises(LinesMissing, match="shard 1: 11 of the lines 20 to 30 are not there"):
        read_all(open_journal(sqlite_url))


def test_missing_lines_are_named_where_many_shards_are_read(postgres_url: str, postgres_server: PostgresServer) -> None:
    journal = open_journal(postgres_url)
    whole = spans_between(journal.heads().start, journal.heads().end)
    spans = [Span(shard_id, 5, last - 1) for shard_id, _, last in map(astuple, reversed(whole))]
    wanted = Wanted(("seq", "kind"))
    read = sum(batch.num_rows for batch in journal.batches(spans, wanted))

    gone = "DELETE FROM rota.group_events WHERE shard_id = 1 AND seq IN (4, 9, 11)"
    postgres_server.execute(gone, database=postgres_url.rpartition("/")[2])

    assert len(spans) == 2
    assert read == sum(span.lines for span in spans)
    with pytest.raises(LinesMissing, match="shard 1: 2 of the lines 9 to 11 are not there"):
        list(journal.batches(spans, wanted))


def test_lines_that_were_pruned_before_they_were_read_are_named(sqlite_url: str) -> None:
    journal = open_journal(sqlite_url)
    before = journal.heads().start
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("UPDATE shards SET first_seq = 41 WHERE shard_id = 1")
        connection.execute("DELETE FROM group_events WHERE shard_id = 1 AND seq <= 40")

    with pytest.raises(LinesMissing, match="shard 1: lines 1 to 40 were pruned before they were read"):
        journal.heads().check(before)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
@pytest.mark.parametrize("wanted", [Wanted(), Wanted(kinds=("group_emptied",)), Wanted(groups=(("default", "none"),))])
def test_lines_that_are_pruned_while_they_are_read_are_named(
    engine: str, wanted: Wanted, request: pytest.FixtureRequest
) -> None:
    """Also where few lines are wanted, so that the lines that are read do not show a gap."""
    url = str(request.getfixturevalue(f"{engine}_url"))
    journal = open_journal(url)
    spans = spans_between(journal.heads().start, journal.heads().end)
    keep_from(41, url, request)

    with pytest.raises(LinesMissing, match=r"shard 1: .*lines 1 to 40 (were pruned|are not there)"):
        list(journal.batches(spans, wanted))

    rest = [Span(1, 41, span.last) for span in spans if span.shard_id == 1]
    list(journal.batches(rest, wanted))


def keep_from(first: int, url: str, request: pytest.FixtureRequest) -> None:
    """Prune shard 1 up to the line before."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute("UPDATE shards SET first_seq = ? WHERE shard_id = 1", (first,))
            connection.execute("DELETE FROM group_events WHERE shard_id = 1 AND seq < ?", (first,))
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    database = url.rpartition("/")[2]
    server.execute(f"DELETE FROM rota.group_events WHERE shard_id = 1 AND seq < {first}", database=database)
    server.execute(f"UPDATE rota.shards SET first_seq = {first} WHERE shard_id = 1", database=database)


def test_another_journal_and_one_that_went_back_are_refused(sqlite_url: str) -> None:
    heads = open_journal(sqlite_url).heads()
    ahead = {**heads.last_seq, 1: heads.last_seq[1] + 1}

    with pytest.raises(WrongIncarnation, match="this journal is 1111"):
        heads.check(Position("another", heads.last_seq))
    with pytest.raises(WrongIncarnation, match="restored to an earlier moment"):
        heads.check(Position(heads.incarnation, ahead))
    with pytest.raises(WrongIncarnation):
        heads.check(Position(heads.incarnation, {2: 1}))  # a store with another number of shards


def test_a_schema_of_a_later_release_or_none_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    sqlite3.connect(tmp_path / "empty.db").close()

    with pytest.raises(JournalRefused, match="9999 is of a later release"):
        check_schema(open_journal(sqlite_url))
    with pytest.raises(JournalRefused, match="rota db upgrade"):
        open_journal(f"sqlite:///{tmp_path / 'empty.db'}").heads()
    with pytest.raises(JournalUnreachable, match="there is no store"):
        open_journal(f"sqlite:///{tmp_path / 'none.db'}").heads()
    with pytest.raises(JournalUnreachable, match="Postgres cannot be read"):
        open_journal("postgresql://nobody@127.0.0.1:1/none").heads()


def test_the_role_may_read_and_leave_a_bookmark_and_nothing_else(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    database = postgres_url.rpartition("/")[2]
    for statement in (f"CREATE ROLE reads_{database} LOGIN", f"GRANT rota_reader TO reads_{database}"):
        postgres_server.execute(statement, database=database)
    postgres_server.execute(f"CREATE ROLE strange_{database} LOGIN", database=database)
    reads = postgres_url.replace("postgres@", f"reads_{database}@")

    journal = open_journal(reads)
    lines = read_all(journal)
    journal.bookmark("pipeline", journal.heads().end)

    assert lines == read_all(open_journal(postgres_url))
    kept = postgres_server.execute("SELECT reader FROM rota.journal_readers", database=database)
    assert kept == "pipeline"
    with pytest.raises(JournalRefused, match="GRANT rota_reader"):
        open_journal(postgres_url.replace("postgres@", f"strange_{database}@")).heads()
    asyncio.run(refused(reads, "DELETE FROM rota.group_events"))
    asyncio.run(refused(reads, "SELECT * FROM rota.offsets"))


async def refused(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute(statement)
    await connection.close()


def test_the_password_is_in_the_file_that_the_url_names(postgres_server: PostgresServer, tmp_path: Path) -> None:
    database = postgres_server.create_database().rpartition("/")[2]
    role = f"guarded_{database}"
    postgres_server.execute(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD 'it''s a/b&c?'")
    hba = postgres_server.data_directory / "pg_hba.conf"
    hba.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
    postgres_server.execute("SELECT pg_reload_conf()")
    file = tmp_path / "password"
    file.write_text("it's a/b&c?\n")
    url = f"postgresql://{role}@127.0.0.1:{postgres_server.port}/{database}?application_name=a&password_file={file}"

    done = generate(fleet(url), processes=1)
    journal = open_journal(url)
    read = read_all(journal)
    file.write_text("another\n")

    assert len(read) == done.lines > 0
    with pytest.raises((JournalRefused, JournalUnreachable), match="authentication failed") as refused:
        journal.heads()
    assert "another" not in str(refused.value)
    file.unlink()
    with pytest.raises(JournalUnreachable, match="the password of Postgres cannot be read"):
        journal.heads()


def test_cuts_take_an_equal_part_of_each_shard_and_end_with_all() -> None:
    end, done = Position("i", {0: 900, 1: 100, 2: 1, 3: 7}), Position("i", {3: 7})
    found = []

    while done != end:
        after = cut(done, end, 300)
        found.append(sum(span.lines for span in spans_between(done, after)))
        done = after

    assert found == [299, 299, 299, 104]


def test_each_task_has_its_part_of_every_span() -> None:
    spans = [Span(0, 1, 250), Span(1, 1, 10), Span(2, 5, 14), Span(3, 1, 100)]

    tasks = packed(spans, 100)

    assert [sum(span.lines for span in task) for task in tasks] == [93, 93, 92, 92]
    assert [[span for span in task if span.shard_id == 0] for task in tasks] == [
        [Span(0, 1, 63)],
        [Span(0, 64, 126)],
        [Span(0, 127, 188)],
        [Span(0, 189, 250)],
    ]
    assert _all_lines(span for task in tasks for span in task) == _all_lines(spans)


def test_tasks_are_of_one_size_where_spans_are_short() -> None:
    tasks = packed([Span(shard_id, 7, 7 + shard_id % 3) for shard_id in range(600)], 100)

    assert [sum(span.lines for span in task) for task in tasks] == [100] * 12


def test_there_is_no_task_where_there_is_nothing_to_read() -> None:
    assert packed([], 100) == []


def _all_lines(spans: Iterable[Span]) -> list[tuple[int, int]]:
    return sorted((span.shard_id, seq) for span in spans for seq in range(span.first, span.last + 1))


# --- the trap of serial numbers ---------------------------------------------------------------------

WRITERS, SHARDS, WRITES = 16, 16, 40


@pytest.mark.thorough
def test_an_id_cursor_misses_lines_of_slow_writers_and_ours_none(postgres_dsn: str) -> None:
    """A serial number is drawn before its transaction commits; our numbers are drawn under the shard's lock."""
    asyncio.run(upgrade(postgres_dsn))
    asyncio.run(_with_serial_numbers(postgres_dsn))
    stop = threading.Event()
    ours: list[tuple[int, int]] = []
    reader = threading.Thread(target=_follow, args=(postgres_dsn, stop, ours))
    reader.start()

    naive, committed = asyncio.run(_write_and_follow(postgres_dsn))
    stop.set()
    reader.join()

    assert len(naive) < committed, "the trap is not there any more: is this test still one?"
    assert len(ours) == len(set(ours)) == SHARDS * WRITES


async def _with_serial_numbers(dsn: str) -> None:
    store = SqlStore(dsn)
    await store.open(SHARDS)
    await store.claim(range(SHARDS), "r", "", 60_000)
    await store.close()
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE serial (id bigserial PRIMARY KEY, writer int)")
    await connection.close()


async def _write_and_follow(dsn: str) -> tuple[set[int], int]:
    done = asyncio.Event()
    seen: set[int] = set()
    follower = asyncio.create_task(_follow_ids(dsn, done, seen))
    committed = await asyncio.gather(*(_write(dsn, writer) for writer in range(WRITERS)))
    done.set()
    await follower
    return seen, sum(committed)


async def _write(dsn: str, writer: int) -> int:
    """In one transaction after the other, of different lengths: a row with a serial number, and a line of a shard."""
    store = SqlStore(dsn)
    await store.open(SHARDS)
    connection = await asyncpg.connect(dsn)
    for number in range(1, WRITES + 1):
        async with connection.transaction():
            await connection.execute("INSERT INTO serial (writer) VALUES ($1)", writer)
            await asyncio.sleep(0.002 * ((writer + number) % 8))
        event = JournalEvent(number, UNTIL_MS, "n", "g", 0, "offsets_committed", "", {"member_id": "", "offsets": []})
        assert await store.append([ShardBatch(writer, 1, number, (event,), RowChanges())]) == []
    await connection.close()
    await store.close()
    return WRITES


async def _follow_ids(dsn: str, done: asyncio.Event, seen: set[int]) -> None:
    connection = await asyncpg.connect(dsn)
    last, finished = 0, False
    while not finished:
        finished = done.is_set()
        for row in await connection.fetch("SELECT id FROM serial WHERE id > $1", last):
            seen.add(row["id"])
            last = max(last, row["id"])
        await asyncio.sleep(0.001)
    await connection.close()


def _follow(dsn: str, stop: threading.Event, seen: list[tuple[int, int]]) -> None:
    journal = open_journal(dsn)
    done, finished = journal.heads().start, False
    while not finished:
        finished = stop.is_set()
        end = journal.heads().end
        seen.extend(_numbers(journal, spans_between(done, end)))
        done = end


def _numbers(journal: Journal, spans: list[Span]) -> Iterator[tuple[int, int]]:
    for batch in journal.batches(spans, Wanted(("shard_id", "seq"))):
        yield from zip(batch.column("shard_id").to_pylist(), batch.column("seq").to_pylist(), strict=True)
