"""A coordinator on a Postgres that users have tables of their own in, and connections such as users have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from rota.protocol.limits import Limits
from rota.protocol.messages import (
    FetchOffsets,
    FetchReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeavingMember,
    Protocol,
    SyncGroup,
)
from rota.server.runtime.coordinator import LocalCoordinator
from rota.storage.migrate import upgrade
from rota.storage.store import SqlStore
from tests.support.postgres import PostgresServer

LIMITS = Limits(initial_rebalance_delay_ms=0)


@pytest.fixture(scope="session")
def bank_template(postgres_server: PostgresServer) -> str:
    """A database with our schema, a user's table, and a role that may use the functions alone."""
    dsn = postgres_server.create_database("bank_template")
    asyncio.run(_set_up(dsn))
    return "bank_template"


async def _set_up(dsn: str) -> None:
    await upgrade(dsn)
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        """
        CREATE TABLE public.accounts (name text PRIMARY KEY, balance bigint NOT NULL);
        CREATE TABLE public.transfers (number integer PRIMARY KEY, amount bigint NOT NULL);
        CREATE TABLE public.ledger (number integer, teller text);
        DO $$ BEGIN CREATE ROLE teller LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
        GRANT ALL ON ALL TABLES IN SCHEMA public TO teller;
        SELECT rota.grant_fences('teller', 'default');
        """
    )
    await connection.close()


@pytest.fixture
def dsn(postgres_server: PostgresServer, bank_template: str) -> Iterator[str]:
    dsn = postgres_server.create_database(template=bank_template)
    yield dsn
    postgres_server.drop_database(dsn.rpartition("/")[2])


@asynccontextmanager
async def serving(
    dsn: str, *, on_terminated: Callable[[str], None] | None = None, **options: object
) -> AsyncIterator[LocalCoordinator]:
    store = SqlStore(dsn, on_terminated=on_terminated)
    await store.open(4)
    try:
        async with LocalCoordinator(store, shard_count=4, limits=LIMITS, lease_ms=60_000, **options) as coordinator:  # type: ignore[arg-type]
            await coordinator.wait_until_ready()
            yield coordinator
    finally:
        await store.close()


@pytest.fixture
async def coordinator(dsn: str) -> AsyncIterator[LocalCoordinator]:
    async with serving(dsn) as coordinator:
        yield coordinator


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """As the user's application connects: with the right to call the functions, and no other in our schema."""
    connection = await asyncpg.connect(dsn, user="teller")
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def teller(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    async with connected(dsn) as connection:
        yield connection


async def joined(coordinator: LocalCoordinator, instance: str = "i1") -> JoinReply:
    """A static member that leads, alone, a generation of the group `tellers`."""
    request = JoinGroup("default", "tellers", "worker", (Protocol("p"),), 30_000, 30_000, group_instance_id=instance)
    reply = (await coordinator.call(request)).reply
    assert isinstance(reply, JoinReply)
    assert reply.generation_id > 0
    await coordinator.call(
        SyncGroup("default", "tellers", reply.member_id, reply.generation_id, assignments=((reply.member_id, b"all"),))
    )
    return reply


async def left(coordinator: LocalCoordinator, who: JoinReply) -> None:
    await coordinator.call(LeaveGroup("default", "tellers", (LeavingMember(who.member_id),)))


async def replaced(coordinator: LocalCoordinator, old: JoinReply, instance: str = "i2") -> JoinReply:
    """The group without `old`, which does not know: another leads a newer generation."""
    await left(coordinator, old)
    return await joined(coordinator, instance)


async def fetched(coordinator: LocalCoordinator) -> dict[tuple[str, int], int]:
    reply = (await coordinator.call(FetchOffsets("default", "tellers"))).reply
    assert isinstance(reply, FetchReply)
    return {(offset.topic, offset.partition): offset.offset for offset in reply.offsets}
