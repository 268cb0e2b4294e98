"""The live replicas: a row per replica, valid until its expiry by the store's clock."""

from __future__ import annotations

from dataclasses import asdict, fields

from sqlalchemy import BigInteger, Executable, Text, bindparam, delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.replica.ports import Replica
from rota.storage.schema import replicas, store_clock_ms

_COLUMNS = [replicas.c[field.name] for field in fields(Replica)]
_UP = select(*_COLUMNS).where(replicas.c.seen_until_ms > store_clock_ms()).order_by(replicas.c.replica_id)
_GONE = delete(replicas).where(replicas.c.replica_id == bindparam("me", type_=Text()))
_KEPT_MS = 3_600_000
_FORGOTTEN = delete(replicas).where(replicas.c.seen_until_ms < store_clock_ms() - _KEPT_MS)


class Replicas:
    """The statements on `replicas`."""

    def __init__(self, dialect: str) -> None:
        self._register = _register(dialect)

    async def register(self, connection: AsyncConnection, replica: Replica, ttl_ms: int) -> list[Replica]:
        values = {f"my_{name}": value for name, value in asdict(replica).items()}
        await connection.execute(self._register, {**values, "ttl_ms": ttl_ms})
        return [Replica(*row) for row in (await connection.execute(_UP)).all()]

    async def deregister(self, connection: AsyncConnection, replica_id: str) -> None:
        await connection.execute(_GONE, {"me": replica_id})
        await connection.execute(_FORGOTTEN)


def _register(dialect: str) -> Executable:
    engine = postgresql if dialect == "postgresql" else sqlite
    until = store_clock_ms() + bindparam("ttl_ms", type_=BigInteger())
    mine = {column.key: bindparam(f"my_{column.key}", type_=column.type) for column in _COLUMNS}
    insert = engine.insert(replicas).values(**mine, seen_until_ms=until)
    changing = {name: insert.excluded[name] for name in (*mine, "seen_until_ms") if name != "replica_id"}
    upsert: Executable = insert.on_conflict_do_update(index_elements=[replicas.c.replica_id], set_=changing)
    return upsert
