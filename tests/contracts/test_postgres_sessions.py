"""Sessions on Postgres: which settings they have, how long they are kept, and what ends them."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
from sqlalchemy import text

from rota.core.group.rows import RowChanges
from rota.core.replica.ports import StoreUnavailable
from rota.storage.append import driver_of
from rota.storage.errors import as_store_error
from rota.storage.postgres import asyncpg_connect
from rota.storage.store import SqlStore
from rota.storage.urls import PostgresLocation
from tests.contracts.builders import a_batch, a_group, a_member, claim_one, image_of
from tests.contracts.conftest import EVENTUALLY_S, SHARD_COUNT
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresServer

OUR_SETTINGS = (
    "default_transaction_isolation, default_transaction_read_only,"
    " statement_timeout, lock_timeout, idle_in_transaction_session_timeout"
)


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[SqlStore]:
    store = SqlStore(postgres_url)
    await store.open(SHARD_COUNT)
    yield store
    await store.close()


async def end_sessions(store: SqlStore, server: PostgresServer) -> int:
    """As a failover or `idle_session_timeout` does; returns how many, once the store has noticed."""
    ended = asyncio.Event()
    async with store._connections.single() as connection:
        driver_of(connection).add_termination_listener(lambda _: ended.set())
    database = f"'{str(store.location).rpartition('/')[2]}'"
    ends = f"SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE datname = {database}"
    count = int(server.execute(ends))
    async with asyncio.timeout(EVENTUALLY_S):
        await ended.wait()
    return count


async def test_no_caller_gets_a_connection_that_was_ended(store: SqlStore, postgres_server: PostgresServer) -> None:
    claim = await claim_one(store)
    await asyncio.gather(*(store.ping() for _ in range(5)))

    assert await end_sessions(store, postgres_server) == 5

    await asyncio.gather(*(store.ping() for _ in range(5)))
    assert await store.append([a_batch(claim)]) == []


def test_a_session_that_is_being_ended_is_named_in_plain_words() -> None:
    """Between the last words of Postgres and the end of the connection, asyncpg speaks of its own states."""
    error = asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")

    assert str(as_store_error(error)) == "the store has ended the connection"


async def test_an_appends_connection_is_set_up_again_when_replaced(
    store: SqlStore, postgres_server: PostgresServer
) -> None:
    async def found() -> tuple[str, ...]:
        async with store._connections.single() as connection:
            names = ("plan_cache_mode", "enable_seqscan", "synchronous_commit", "statement_timeout")
            return tuple([await connection.scalar(text(f"SHOW {name}")) for name in names])

    await end_sessions(store, postgres_server)

    assert await found() == ("force_generic_plan", "off", "on", "3s")


async def test_rows_are_deleted_by_lookups_though_planned_for_none(
    store: SqlStore, postgres_server: PostgresServer, postgres_url: str
) -> None:
    """A plan is kept while its tables grow: a walk through a table that was empty took 8 s for 5,000 of 10,000 rows."""
    postgres_server.execute("VACUUM ANALYZE", database=postgres_url.rpartition("/")[2])
    claim = await claim_one(store)
    gone = RowChanges(
        members_deleted=[("default", "g", each) for each in "ab"],
        offsets_deleted=[("default", "g", "documents", each) for each in (1, 2)],
    )

    await store.append([a_batch(claim, rows=gone)])

    async with store._connections.single() as connection:
        deletes = (
            "SELECT name, cardinality(parameter_types) FROM pg_prepared_statements WHERE statement LIKE 'WITH %DELETE%'"
        )
        ((name, parameters),) = (await connection.execute(text(deletes))).all()
        explained = text(f'EXPLAIN EXECUTE "{name}" ({", ".join(["NULL"] * parameters)})')
        plan = "\n".join((await connection.scalars(explained)).all())
    for table, last_key in (("members", "member_id"), ("offsets", "partition")):
        assert re.search(rf"Index Scan using {table}_pkey on {table} .*\n +Index Cond: .*\b{last_key} = ", plan), plan


async def test_a_host_that_hangs_does_not_hide_the_others(postgres_url: str) -> None:
    """The machine of a primary that has failed does not even refuse: its standby has taken over long before."""
    with socket.create_server(("127.0.0.1", 0)) as hung:
        store = SqlStore(postgres_url.replace("@", f"@127.0.0.1:{hung.getsockname()[1]},"))
        await store.open(SHARD_COUNT)

        assert await store.append([a_batch(await claim_one(store))]) == []
        await store.close()


async def test_a_host_that_comes_too_late_is_hung_up(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.storage.postgres._PATIENCE_S", 0.0)
    host = f"127.0.0.1:{postgres_server.port}"
    connection = await asyncpg_connect(PostgresLocation(postgres_url.replace(host, ",".join([host] * 5))))

    count = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{postgres_url.rpartition('/')[2]}'"
    async with asyncio.timeout(EVENTUALLY_S):
        while await connection.fetchval(count) > 1:
            continue  # each look waits for the server
    await connection.close()


async def test_idle_connections_are_kept_alive(store: SqlStore) -> None:
    """Firewalls drop a connection that is silent for minutes, and notify neither side."""
    idle = next(getattr(socket, name) for name in ("TCP_KEEPIDLE", "TCP_KEEPALIVE") if hasattr(socket, name))
    for opened in (store._connections.single(), store._connections.reading()):
        async with opened as connection:
            channel = driver_of(connection)._transport.get_extra_info("socket")
            assert channel.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert channel.getsockopt(socket.IPPROTO_TCP, idle) <= 60


@pytest.mark.parametrize("through", ["postgres_url", pytest.param("pooled_url", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "setting",
    [
        "array_nulls = off",
        "bytea_output = escape",
        "client_encoding = LATIN1",
        "default_transaction_isolation = serializable",
        "default_transaction_read_only = on",
        "enable_indexscan = off",
        "lock_timeout = 100",
        "search_path = ''",
        "standard_conforming_strings = off",
        "statement_timeout = 100",
        "timezone = 'Asia/Kathmandu'",
    ],
)
async def test_a_databases_settings_change_no_value(
    request: pytest.FixtureRequest, postgres_server: PostgresServer, postgres_url: str, setting: str, through: str
) -> None:
    postgres_server.execute(f'ALTER DATABASE "{postgres_url.rpartition("/")[2]}" SET {setting}')
    store = SqlStore(request.getfixturevalue(through))
    await store.open(SHARD_COUNT)
    claim = await claim_one(store)
    groups = [a_group("a\\b", leader_id=None, frozen_until_ms=None), a_group("c", leader_id="NULL")]
    members = [a_member("m\\1", assignment=b"\\\x00"), a_member("m-2", position=1, group_instance_id="NULL")]

    refused = await store.append([a_batch(claim, rows=RowChanges(groups=groups, members=members))])

    image = await image_of(store, 0)
    await store.close()
    assert (refused, sorted(image.groups, key=lambda each: each.group_id)) == ([], groups)
    assert sorted(image.members, key=lambda each: each.position) == members


@pytest.fixture
def lax_pooler(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """A pooler that lets our settings pass, and ignores them."""
    with PgBouncer(postgres_server, pool_size=1, settings={"ignore_startup_parameters": OUR_SETTINGS}) as pooler:
        yield pooler


@pytest.mark.parametrize("pooler", ["pgbouncer", "lax_pooler"])
async def test_a_pooler_that_comes_later_is_found_at_the_login(
    request: pytest.FixtureRequest, pooler: str, postgres_server: PostgresServer, postgres_url: str
) -> None:
    """An address of Postgres may lead to a pooler one day; what a server sets in its own sessions is not for others."""
    postgres_server.execute(f'ALTER DATABASE "{postgres_url.rpartition("/")[2]}" SET synchronous_commit = off')
    location = PostgresLocation(request.getfixturevalue(pooler).through(postgres_url))

    with pytest.raises(StoreUnavailable, match="a pooler is in front of Postgres now"):
        await asyncpg_connect(location, 3_000)

    stranger = await asyncpg_connect(location)
    assert await stranger.fetchval("SHOW synchronous_commit") == "off"
    await stranger.close()
