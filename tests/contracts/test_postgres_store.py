"""What the store on Postgres promises beyond the contract: bounded transactions, honest errors, partitions by day."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from rota.core.group.rows import RowChanges
from rota.core.replica.ports import Replica, ShardClaim, StoreRefused, StoreUnavailable
from rota.storage.append import append_to_postgres
from rota.storage.errors import store_errors
from rota.storage.migrate import upgrade
from rota.storage.postgres import CLOSE_S
from rota.storage.pruning import opened
from rota.storage.store import SqlStore
from tests.contracts.builders import a_batch, a_group, an_event, an_offset, image_of
from tests.contracts.conftest import EVENTUALLY_S, SHARD_COUNT
from tests.support.postgres import PostgresServer

DAY_MS = 86_400_000


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[SqlStore]:
    store = SqlStore(postgres_url)
    await store.open(SHARD_COUNT)
    yield store
    await store.close()


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    with PostgresServer(durable=False) as server:
        yield server


@pytest.fixture
async def own_store(own_server: PostgresServer) -> AsyncIterator[SqlStore]:
    """The store on that server."""
    url = own_server.create_database()
    await upgrade(url)
    store = SqlStore(url)
    await store.open(SHARD_COUNT)
    yield store
    await store.close()


async def claim_one(store: SqlStore, replica_id: str = "r-1") -> ShardClaim:
    (claim,) = await store.claim([0], replica_id, "http://one", 60_000, steal=True)
    return claim


async def scalars(store: SqlStore, statement: str) -> list[Any]:
    async with store._writing() as connection:
        return list((await connection.scalars(text(statement))).all())


# --- transactions -----------------------------------------------------------------------------


LIMITS = (
    "SELECT current_setting('statement_timeout'), current_setting('lock_timeout'),"
    " current_setting('idle_in_transaction_session_timeout'), pg_backend_pid()"
)


async def test_a_transactions_limits_do_not_change_the_session(postgres_url: str) -> None:
    store = SqlStore(postgres_url, write_timeout_ms=1_000, read_timeout_ms=7_000)
    await store.open(SHARD_COUNT)
    async with store._reading() as connection:
        *reading, pid = (await connection.execute(text(LIMITS))).one()
    async with store._connections.single() as connection:
        *appending, same_pid = (await connection.execute(text(LIMITS))).one()
    await store.close()

    assert (reading, appending) == (["7s"] * 3, ["1s"] * 3)
    assert pid == same_pid, "another connection tells nothing of this one"


async def test_a_database_that_answers_early_has_to_wait(postgres_server: PostgresServer, postgres_url: str) -> None:
    name = postgres_url.rpartition("/")[2]
    postgres_server.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    store = SqlStore(postgres_url)
    await store.open(SHARD_COUNT)

    setting = "SELECT current_setting('synchronous_commit')"
    async with store._connections.single() as connection:
        assert await connection.scalar(text(setting)) == "on"
    assert await scalars(store, setting) == ["on"]
    await store.close()


async def test_a_command_waits_for_the_disk_too(postgres_server: PostgresServer, postgres_url: str) -> None:
    """Or a token that was revoked would be accepted again after a crash of Postgres."""
    name = postgres_url.rpartition("/")[2]
    postgres_server.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')

    async with opened(postgres_url, writes=True) as engine, engine.begin() as connection:
        assert await connection.scalar(text("SELECT current_setting('synchronous_commit')")) == "on"


async def test_no_other_caller_gets_a_connection_for_appends(store: SqlStore) -> None:
    shown = []
    async with store._connections.single(), store._connections.single() as second:
        shown.append(await second.scalar(text("SHOW enable_seqscan")))
    async with AsyncExitStack() as opened:
        for _ in range(3):
            connection = await opened.enter_async_context(store._writing())
            shown.append(await connection.scalar(text("SHOW enable_seqscan")))

    assert shown == ["off", "on", "on", "on"]


async def test_an_append_that_waits_for_a_lock_ends_and_never_lands(store: SqlStore, postgres_url: str) -> None:
    claim = await claim_one(store)
    other = SqlStore(postgres_url, write_timeout_ms=10_000)
    await other.open(SHARD_COUNT)
    async with other._writing() as connection:
        await connection.execute(text("LOCK TABLE rota.group_events IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(StoreUnavailable):
            async with asyncio.timeout(EVENTUALLY_S):
                await store.append([a_batch(claim)])
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        async with asyncio.timeout(EVENTUALLY_S):
            while await connection.scalar(waiting):
                continue  # the server gives the statement up by itself, too
    await other.close()

    assert (await image_of(store, 0)).last_seq == 0
    assert await store.append([a_batch(claim)]) == []


@pytest.mark.parametrize(
    ("meanwhile", "refused"), [("lease_until_ms = lease_until_ms + 1", []), ("epoch = epoch + 1", [0])]
)
@pytest.mark.parametrize("taken", [0, 1, 2])
async def test_an_append_is_checked_again_after_a_wait_for_its_shard(
    store: SqlStore, meanwhile: str, refused: list[int], taken: int
) -> None:
    """Its snapshot is older. A renewal meanwhile refuses nothing, also where side commits are taken over; a claim does.

    Without side commits its values are parameters, otherwise arrays.
    """
    claim = await claim_one(store)
    columns, values = "shard_id, namespace, group_id, topic, partition, member_id", "0, 'default', 'g', 't', n, 'm-1'"
    series = f"generate_series(1, {taken}) AS n"
    ids = await scalars(store, f"INSERT INTO rota.side_commits ({columns}) SELECT {values} FROM {series} RETURNING id")
    rows = RowChanges(groups=[a_group()], offsets=[an_offset()], side_commits_taken=ids)

    async with store._writing() as connection:
        await connection.execute(text(f"UPDATE rota.shards SET {meanwhile} WHERE shard_id = 0"))
        append = asyncio.create_task(store.append([a_batch(claim, rows=rows)]))
        while not await connection.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
            assert not append.done()

    assert await append == refused
    image = await image_of(store, 0)
    assert (image.last_seq, len(image.groups), len(image.offsets)) == ((0, 0, 0) if refused else (1, 1, 1))
    assert len(await store.side_commits([0])) == (taken if refused else 0)


@pytest.mark.parametrize("table", ["shards", "side_commits"])
async def test_a_read_before_commits_ends_as_soon_as_a_write_does(
    store: SqlStore, postgres_url: str, table: str
) -> None:
    prompt = SqlStore(postgres_url, write_timeout_ms=200)
    await prompt.open(SHARD_COUNT)
    async with store._writing() as connection:
        await connection.execute(text(f"LOCK TABLE rota.{table} IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(StoreUnavailable):
            async with asyncio.timeout(2):
                await (prompt.owners() if table == "shards" else prompt.side_commits([0]))
    await prompt.close()


async def test_an_owner_paused_in_mid_transaction_locks_no_shard(store: SqlStore, postgres_url: str) -> None:
    old = await claim_one(store, "r-1")
    next_owner = SqlStore(postgres_url, write_timeout_ms=10_000)
    await next_owner.open(SHARD_COUNT)

    # A paused process does not watch its own deadlines, so this transaction has none: only the server can end it.
    transaction = store._connections.writing()
    connection = await transaction.__aenter__()
    await append_to_postgres(connection, [a_batch(old)])
    taken = await claim_one(next_owner, "r-2")
    with pytest.raises(StoreUnavailable), store_errors():
        await transaction.__aexit__(None, None, None)

    assert (taken.epoch, taken.last_seq) == (old.epoch + 1, 0)
    assert await store.append([a_batch(old)]) == [0]
    await next_owner.close()


async def test_cancelled_appends_land_whole_or_not_with_their_answers(store: SqlStore) -> None:
    claim = await claim_one(store)
    cancelled = 0
    for steps in range(60):
        end = (await image_of(store, 0)).last_seq
        rows = RowChanges(groups=[a_group(generation_id=end + 1)], offsets=[an_offset(0, end + 1)])
        append = asyncio.create_task(store.append([a_batch(claim, an_event(0), after=end, rows=rows)]))
        for _ in range(steps * 4):
            await asyncio.sleep(0)
        append.cancel()
        outcome, image = await asyncio.gather(append, image_of(store, 0), return_exceptions=True)
        cancelled += isinstance(outcome, asyncio.CancelledError)
        assert not isinstance(image, BaseException)
        assert {image.last_seq} >= {g.generation_id for g in image.groups} | {o.offset for o in image.offsets}
        if outcome == []:
            assert (await image_of(store, 0)).last_seq == end + 1
    assert cancelled

    end = (await image_of(store, 0)).last_seq
    assert await store.append([a_batch(claim, after=end)]) == []
    assert [event.seq for event in await store.read_events(0, 0, 100)] == list(range(1, end + 2))


def hang(server: PostgresServer, number: signal.Signals = signal.SIGSTOP) -> None:
    """Stop the postmaster and all its backends where they are, or let them go on."""
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for each in (pid, *map(int, children)):
        os.kill(each, number)


# --- a server that is away --------------------------------------------------------------------


async def test_an_unavailable_store_serves_again_when_it_is_back(
    own_server: PostgresServer, own_store: SqlStore
) -> None:
    claim = await claim_one(own_store)
    await own_store.append([a_batch(claim)])

    own_server.kill9()
    for call in (own_store.ping(), own_store.append([a_batch(claim, after=1)]), own_store.renew([claim], "r-1", 1_000)):
        with pytest.raises(StoreUnavailable):
            await call
    own_server.start()

    assert (await image_of(own_store, 0)).last_seq == 1
    assert await own_store.append([a_batch(claim, after=1)]) == []


async def test_an_append_after_a_restart_uses_a_new_connection(own_server: PostgresServer, own_store: SqlStore) -> None:
    claim = await claim_one(own_store)
    await own_store.append([a_batch(claim)])

    own_server.kill9()
    with pytest.raises(StoreUnavailable):
        await own_store.ping()
    own_server.start()
    await own_store.ping()

    assert await own_store.append([a_batch(claim, after=1)]) == []


async def test_an_append_at_a_hanging_server_lands_once_or_never(
    own_server: PostgresServer, own_store: SqlStore
) -> None:
    claim = await claim_one(own_store)
    await own_store.append([a_batch(claim)])

    hang(own_server)
    with pytest.raises(StoreUnavailable):
        async with asyncio.timeout(EVENTUALLY_S):
            await own_store.append([a_batch(claim, after=1)])
    hang(own_server, signal.SIGCONT)

    again = await claim_one(own_store)
    assert again.last_seq in (1, 2)
    assert [event.seq for event in await own_store.read_events(0, 0, 9)] == list(range(1, again.last_seq + 1))


async def test_a_hanging_server_does_not_hold_up_the_end(own_server: PostgresServer, own_store: SqlStore) -> None:
    """A replica that gets SIGTERM closes its store at last, and would not end before it is killed."""
    await own_store.append([a_batch(await claim_one(own_store))])

    hang(own_server)
    try:
        async with asyncio.timeout(2 * CLOSE_S):
            await own_store.close()
    finally:
        hang(own_server, signal.SIGCONT)


async def test_no_listener_is_unavailable_and_no_database_rejected(postgres_dsn: str) -> None:
    host = postgres_dsn.rpartition("/")[0]

    with pytest.raises(StoreRefused, match="does not exist"):
        await SqlStore(f"{host}/no_such_database").open(SHARD_COUNT)
    with pytest.raises(StoreUnavailable):
        await SqlStore("postgresql://postgres@127.0.0.1:1/rota").open(SHARD_COUNT)


async def test_a_missing_driver_is_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)

    with pytest.raises(StoreRefused, match=r"rota\[postgres\]"):
        await upgrade("postgresql://localhost/rota")


@pytest.mark.parametrize("others", [0, 1], ids=["one_row", "more_rows"])
async def test_values_that_postgres_rejects_leave_nothing(store: SqlStore, others: int) -> None:
    claim, beside = await claim_one(store), [an_offset(1)] * others

    for offset in (an_offset(metadata="\0"), an_offset(metadata="\ud800"), an_offset(0, 2**63)):
        with pytest.raises(StoreUnavailable):
            await store.append([a_batch(claim, rows=RowChanges(offsets=[offset, *beside]))])

    assert (await image_of(store, 0)).last_seq == 0
    assert await store.append([a_batch(claim)]) == []


# --- partitions -------------------------------------------------------------------------------

PARTITIONS = (
    "SELECT child.relname FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid"
    " WHERE inhparent = CAST('rota.group_events' AS regclass) ORDER BY 1"
)
LINES = "SELECT tableoid::regclass::text FROM rota.group_events ORDER BY seq"


def day_of_the_server(ahead: int) -> str:
    return f"group_events_{datetime.now(UTC) + timedelta(days=ahead):%Y%m%d}"


async def test_partitions_of_the_next_days_exist_for_every_upkeep(
    store: SqlStore,
) -> None:
    today, tomorrow = day_of_the_server(0), day_of_the_server(1)
    async with store._writing() as connection:
        await connection.execute(text(f"DROP TABLE rota.{today}, rota.{tomorrow}"))

    await asyncio.gather(*(store.maintain() for _ in range(5)))

    names = await scalars(store, PARTITIONS)
    assert names == sorted({*(day_of_the_server(n) for n in range(4)), "group_events_default"})


@asynccontextmanager
async def a_backup_under_way(store: SqlStore) -> AsyncIterator[None]:
    """Another session reads the journal, on a day without the partition of a later one."""
    async with store._writing() as connection:
        await connection.execute(text(f"DROP TABLE rota.{day_of_the_server(3)}"))
    async with store._reading() as connection:
        await connection.execute(text("LOCK TABLE rota.group_events IN ACCESS SHARE MODE"))
        yield


async def test_a_server_starts_while_a_backup_reads_the_journal(
    store: SqlStore, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_backup_under_way(store):
        second = SqlStore(postgres_url)

        await second.open(SHARD_COUNT)
        await upgrade(postgres_url)

        assert "partitions of the next days were not made" in caplog.text
        assert await second.append([a_batch(await claim_one(second))]) == []
    await second.maintain()
    assert day_of_the_server(3) in await scalars(second, PARTITIONS)
    await second.close()


async def test_a_server_starts_where_upkeep_takes_too_long(
    store: SqlStore, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a day of lines is in the default partition: to move 600,000 of them takes Postgres 16 s."""
    async with a_backup_under_way(store):
        second = SqlStore(postgres_url, write_timeout_ms=300)

        await second.open(SHARD_COUNT)

        assert "run `rota db upgrade`, which has no time limit" in caplog.text
        assert await second.append([a_batch(await claim_one(second))]) == []
    await second.close()


async def test_a_line_goes_to_the_partition_of_its_day_or_the_default(store: SqlStore) -> None:
    claim = await claim_one(store)
    now_ms = int(datetime.now(UTC).timestamp() * 1000)

    await store.append([a_batch(claim, an_event(1, at_ms=now_ms), an_event(2, at_ms=now_ms + 40 * DAY_MS))])

    assert await scalars(store, LINES) == [f"rota.{day_of_the_server(0)}", "rota.group_events_default"]


async def test_lines_of_a_day_whose_partition_comes_late_move_there(store: SqlStore) -> None:
    claim = await claim_one(store)
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    today = day_of_the_server(0)
    async with store._writing() as connection:
        await connection.execute(text(f"DROP TABLE rota.{today}"))
    await store.append([a_batch(claim, an_event(1, at_ms=now_ms), an_event(2, at_ms=now_ms - 9 * DAY_MS))])
    before = await store.read_events(0, 0, 9)
    assert await scalars(store, LINES) == ["rota.group_events_default"] * 2

    await store.maintain()

    assert await scalars(store, LINES) == [f"rota.{today}", "rota.group_events_default"]
    assert await store.read_events(0, 0, 9) == before


async def test_a_restricted_login_serves_without_making_partitions(
    store: SqlStore, postgres_server: PostgresServer, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, name = postgres_url.rpartition("/")
    async with store._writing() as connection:
        await connection.execute(text(f"DROP TABLE rota.{day_of_the_server(3)}"))
    for grant in (
        "DROP ROLE IF EXISTS servant",
        "CREATE ROLE servant LOGIN",
        "GRANT USAGE ON SCHEMA rota TO servant",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA rota TO servant",
    ):
        postgres_server.execute(grant, database=name)

    servant = SqlStore(f"{host.replace('postgres@', 'servant@')}/{name}")
    with caplog.at_level(logging.WARNING, "rota.storage"):
        await servant.open(SHARD_COUNT)
    claim = await claim_one(servant)

    assert await servant.append([a_batch(claim)]) == []
    assert "rota db upgrade" in caplog.text
    await servant.close()
    postgres_server.execute("DROP OWNED BY servant; DROP ROLE servant", database=name)


async def test_a_login_that_may_not_append_is_refused_at_the_start(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """Else the server would be ready, and each commit would cost it the shard."""
    host, _, name = postgres_url.rpartition("/")
    for statement in (*TENANT, "REVOKE INSERT ON rota.offsets FROM tenant"):
        postgres_server.execute(statement, database=name)
    store = SqlStore(f"{host.replace('postgres@', 'tenant@')}/{name}")

    with pytest.raises(StoreRefused, match="permission denied for table offsets"):
        await store.open(SHARD_COUNT)

    postgres_server.execute("DROP OWNED BY tenant; DROP ROLE tenant", database=name)


async def test_a_login_without_rights_is_refused(postgres_server: PostgresServer, postgres_url: str) -> None:
    host, _, name = postgres_url.rpartition("/")
    postgres_server.execute("DROP ROLE IF EXISTS stranger; CREATE ROLE stranger LOGIN", database=name)

    with pytest.raises(StoreRefused):
        await SqlStore(f"{host.replace('postgres@', 'stranger@')}/{name}").open(SHARD_COUNT)

    postgres_server.execute("DROP ROLE stranger", database=name)


TENANT = (
    "DROP ROLE IF EXISTS tenant",
    "CREATE ROLE tenant LOGIN",
    "GRANT USAGE ON SCHEMA rota TO tenant",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA rota TO tenant",
)
REFUSALS = {
    "login": ("ALTER ROLE tenant NOLOGIN", "ALTER ROLE tenant LOGIN"),
    "connection": ("ALTER ROLE tenant CONNECTION LIMIT 0", "ALTER ROLE tenant CONNECTION LIMIT -1"),
    "right": ("REVOKE ALL ON SCHEMA rota FROM tenant", "GRANT USAGE ON SCHEMA rota TO tenant"),
    "schema": ("ALTER SCHEMA rota RENAME TO away", "ALTER SCHEMA away RENAME TO rota"),
    "database": ('ALTER DATABASE "{name}" RENAME TO away', 'ALTER DATABASE away RENAME TO "{name}"'),
}


@pytest.mark.parametrize("refused", REFUSALS)
async def test_a_store_in_use_is_unavailable_until_it_is_granted_again(
    postgres_server: PostgresServer, postgres_url: str, refused: str
) -> None:
    """A failover, a rotated password, a restore under way: at the start the same would be an error to exit with."""
    host, _, name = postgres_url.rpartition("/")
    for statement in TENANT:
        postgres_server.execute(statement, database=name)
    store = SqlStore(f"{host.replace('postgres@', 'tenant@')}/{name}")
    await store.open(SHARD_COUNT)
    claim = await claim_one(store)
    refuse, grant = (statement.format(name=name) for statement in REFUSALS[refused])
    where = "postgres" if refused == "database" else name
    ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'tenant'"

    postgres_server.execute(ends)
    postgres_server.execute(refuse, database=where)
    for attempt in (
        lambda: store.append([a_batch(claim)]),
        lambda: store.renew([claim], "r-1", 60_000),
        lambda: store.register(Replica("r-1", "http://one"), 60_000),
    ):
        with pytest.raises(StoreUnavailable):
            await attempt()
    postgres_server.execute(grant, database=where)
    postgres_server.execute(ends)

    # The end of a connection may arrive a moment later.
    for _ in range(10):
        with suppress(StoreUnavailable):
            assert [each.shard_id for each in await store.renew([claim], "r-1", 60_000)] == [0]
            break
    assert await store.append([a_batch(claim)]) == []
    await store.close()
    postgres_server.execute("DROP OWNED BY tenant; DROP ROLE tenant", database=name)
