"""Stores to back up, to copy and to restore."""

from __future__ import annotations

from pathlib import Path

from rota.core.group.rows import RowChanges
from rota.core.replica.ports import ShardClaim
from rota.storage.store import SqlStore
from tests.contracts.builders import a_batch, a_group, an_offset
from tests.contracts.conftest import SHARD_COUNT


async def claimed(store: SqlStore, shard_id: int = 0, lease_ms: int = 60_000) -> ShardClaim:
    (claim,) = await store.claim([shard_id], "r-1", "http://one", lease_ms, steal=True)
    return claim


async def append(store: SqlStore, claim: ShardClaim, generation_id: int, offset: int, after: int | None = None) -> None:
    rows = RowChanges(groups=[a_group(generation_id=generation_id)], offsets=[an_offset(offset=offset)])
    assert await store.append([a_batch(claim, after=after, rows=rows)]) == []


async def stop(store: SqlStore) -> None:
    """End the store's leases and its use of it, as a server does that stops."""
    await store.release([ShardClaim(owner.shard_id, owner.epoch, 0) for owner in await store.owners()], "r-1")
    await store.close()


async def opened(url: str) -> SqlStore:
    store = SqlStore(url)
    await store.open(SHARD_COUNT)
    return store


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))
