"""Durable state behind `rota.replica.ports.ShardStore`: Postgres and SQLite."""

from __future__ import annotations

from rota.storage.migrate import MigrationStatus, check, upgrade
from rota.storage.store import SqlStore
from rota.storage.urls import default_store_url

__all__ = [
    "MigrationStatus",
    "SqlStore",
    "check",
    "default_store_url",
    "open_store",
    "upgrade",
]


async def open_store(url: str, shard_count: int) -> SqlStore:
    """A store that is open; `StoreRefused` where its schema or `shard_count` does not fit, or it is in use."""
    store = SqlStore(url)
    await store.open(shard_count)
    return store
