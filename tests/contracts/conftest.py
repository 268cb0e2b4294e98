"""The stores that the contract is run against, each on data of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from rota.core.replica.ports import ShardClaim, ShardStore
from rota.pipeline.journal import Position, open_journal
from rota.storage.migrate import upgrade
from rota.storage.pruning import prune
from rota.storage.store import SqlStore
from rota.testing.memory import MemoryStore, MemoryTables
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresServer

SHARD_COUNT = 8
EVENTUALLY_S = 10.0


class Backing(Protocol):
    """Data that outlives the stores on it."""

    lease_ms: int
    """A lease that is over soon, by this store's clock."""

    def new_store(self) -> ShardStore: ...

    async def until_over(self, store: ShardStore, claim: ShardClaim) -> None:
        """Return when the claim's lease is over by the store's clock."""

    async def prune(self, shard_id: int, up_to: int) -> None:
        """Prune the shard's lines, all of which are of past days, up to this one."""


class MemoryBacking:
    """Its clock stands still until the test moves it."""

    lease_ms = 10_000

    def __init__(self) -> None:
        self._now_ms = 1_000_000
        self.tables = MemoryTables(lambda: self._now_ms)

    def new_store(self) -> ShardStore:
        return MemoryStore(lambda: self._now_ms, tables=self.tables)

    async def until_over(self, store: ShardStore, claim: ShardClaim) -> None:
        self._now_ms += self.lease_ms

    async def prune(self, shard_id: int, up_to: int) -> None:
        self.tables.prune_shard(shard_id, up_to)


class SqlBacking:
    lease_ms = 50

    def __init__(self, url: str) -> None:
        self.url = url

    def new_store(self) -> ShardStore:
        # A test that is not about a store that hangs waits for one that is slow.
        return SqlStore(self.url, write_timeout_ms=60_000)

    async def until_over(self, store: ShardStore, claim: ShardClaim) -> None:
        async with asyncio.timeout(EVENTUALLY_S):
            while await _lease_left_ms(store, claim.shard_id) > 0:
                continue  # each look waits for the store, so that others run meanwhile

    async def prune(self, shard_id: int, up_to: int) -> None:
        """Up to the bookmark of a reader, which is at that line."""
        journal = open_journal(self.url)
        journal.bookmark("slow", Position(journal.heads().incarnation, {shard_id: up_to}))
        assert (await prune(self.url, keep_days=1)).up_to[shard_id] == up_to


async def _lease_left_ms(store: ShardStore, shard_id: int) -> int:
    return next(owner.lease_left_ms for owner in await store.owners() if owner.shard_id == shard_id)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with the schema and nothing else."""
    path = tmp_path_factory.mktemp("template") / "rota.db"
    asyncio.run(_upgraded(f"sqlite:///{path}"))
    return path.read_bytes()


@pytest.fixture
def sqlite_url(sqlite_template: bytes, tmp_path: Path) -> str:
    """A SQLite file with the schema in it."""
    path = tmp_path / "rota.db"
    path.write_bytes(sqlite_template)
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """A database with the schema and nothing else."""
    asyncio.run(_upgraded(postgres_server.create_database("rota_template")))
    return "rota_template"


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """A database with the schema in it, dropped after the test."""
    dsn = postgres_server.create_database(template=postgres_template)
    yield dsn
    postgres_server.drop_database(dsn.rpartition("/")[2])


async def _upgraded(url: str) -> None:
    assert (await upgrade(url)).up_to_date


@pytest.fixture
def pooled_url(pgbouncer: PgBouncer, postgres_url: str) -> str:
    """The same through a pooler in transaction mode."""
    return pgbouncer.through(postgres_url)


@pytest.fixture(params=["memory", "sqlite", "postgres", pytest.param("pgbouncer", marks=pytest.mark.slow)])
def backing(request: pytest.FixtureRequest) -> Backing:
    make: dict[str, Callable[[], Backing]] = {
        "memory": MemoryBacking,
        "sqlite": lambda: SqlBacking(request.getfixturevalue("sqlite_url")),
        "postgres": lambda: SqlBacking(request.getfixturevalue("postgres_url")),
        "pgbouncer": lambda: SqlBacking(request.getfixturevalue("pooled_url")),
    }
    return make[request.param]()


@pytest.fixture
async def store(backing: Backing) -> AsyncIterator[ShardStore]:
    """A store of eight shards, open and empty."""
    store = backing.new_store()
    await store.open(SHARD_COUNT)
    yield store
    await store.close()
