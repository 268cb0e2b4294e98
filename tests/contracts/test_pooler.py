"""A store behind PgBouncer in transaction mode: no client finds anything of another's in the session they share.

The whole contract of a store is run through it, too: see the `backing` fixture.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from rota.core.group.rows import RowChanges
from rota.core.replica.ports import StoreUnavailable
from rota.storage.store import SqlStore
from tests.contracts.builders import a_batch, a_group, image_of
from tests.contracts.conftest import SHARD_COUNT
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresServer

LEFT_IN_THE_SESSION = """
SELECT ARRAY[
    current_setting('statement_timeout'), current_setting('lock_timeout'),
    current_setting('idle_in_transaction_session_timeout'), current_setting('search_path')
], (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
(SELECT count(*) FROM pg_listening_channels())
"""


@pytest.fixture
def one_session(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """A pooler that all its clients share one connection of."""
    with PgBouncer(postgres_server, pool_size=1) as pooler:
        yield pooler


@pytest.fixture
def url(one_session: PgBouncer, postgres_url: str) -> str:
    return one_session.through(postgres_url)


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    store = SqlStore(url)
    await store.open(SHARD_COUNT)
    yield store
    await store.close()


async def found_in_the_session(url: str) -> asyncpg.Record:
    """What another client meets."""
    connection = await asyncpg.connect(url, statement_cache_size=0)
    try:
        return await connection.fetchrow(LEFT_IN_THE_SESSION)
    finally:
        await connection.close()


async def test_a_store_leaves_nothing_in_the_session(store: SqlStore, url: str) -> None:
    before = await found_in_the_session(url)
    (claim,) = await store.claim([0], "r-1", "http://one", 60_000)
    await store.append([a_batch(claim, rows=RowChanges(groups=[a_group()]))])
    await image_of(store, 0)
    await store.maintain()

    after = await found_in_the_session(url)

    assert tuple(after) == tuple(before) == (["0", "0", "0", '"$user", public'], 0, 0, 0)


async def test_a_store_ignores_settings_left_in_the_session(store: SqlStore, url: str) -> None:
    (claim,) = await store.claim([0], "r-1", "http://one", 60_000)
    stranger = await asyncpg.connect(url, statement_cache_size=0)
    for left in ("search_path = pg_catalog", "default_transaction_read_only = on", "synchronous_commit = off"):
        await stranger.execute(f"SET {left}")
    await stranger.close()

    refused = await store.append([a_batch(claim, rows=RowChanges(groups=[a_group()]))])

    assert refused == []
    assert [group.group_id for group in (await image_of(store, 0)).groups] == ["g"]


async def test_a_store_serves_on_when_the_pooler_is_back(store: SqlStore, one_session: PgBouncer) -> None:
    one_session.kill9()
    with pytest.raises(StoreUnavailable):
        await store.owners()

    one_session.start()

    assert await store.owners() == []
