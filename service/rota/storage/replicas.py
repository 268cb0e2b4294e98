"""Who is up: a row a replica, good until its time is over by the store's clock."""

from __future__ import annotations

from sqlalchemy import BigInteger, Executable, Text, bindparam, delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.runtime.ports import Replica
from rota.storage.schema import replicas, store_clock_ms

_UP = (
    select(replicas.c.replica_id, replicas.c.address, replicas.c.peer_address)
    .where(replicas.c.seen_until_ms > store_clock_ms())
    .order_by(replicas.c.replica_id)
)
_GONE = delete(replicas).where(replicas.c.replica_id == bindparam("me", type_=Text()))
_KEPT_MS = 3_600_000
_FORGOTTEN = delete(replicas).where(replicas.c.seen_until_ms < store_clock_ms() - _KEPT_MS)


class Replicas:
    """The statements on `replicas`."""

    def __init__(self, dialect: str) -> None:
        self._register = _register(dialect)

    async def register(self, connection: AsyncConnection, replica: Replica, ttl_ms: int) -> list[Replica]:
        values = {
            "me": replica.replica_id,
            "my_address": replica.address,
            "my_peer_address": replica.peer_address,
            "ttl_ms": ttl_ms,
        }
        await connection.execute(self._register, values)
        return [Replica(*row) for row in (await connection.execute(_UP)).all()]

    async def deregister(self, connection: AsyncConnection, replica_id: str) -> None:
        await connection.execute(_GONE, {"me": replica_id})
        await connection.execute(_FORGOTTEN)


def _register(dialect: str) -> Executable:
    engine = postgresql if dialect == "postgresql" else sqlite
    until = store_clock_ms() + bindparam("ttl_ms", type_=BigInteger())
    insert = engine.insert(replicas).values(
        replica_id=bindparam("me", type_=Text()),
        address=bindparam("my_address", type_=Text()),
        peer_address=bindparam("my_peer_address", type_=Text()),
        seen_until_ms=until,
    )
    upsert: Executable = insert.on_conflict_do_update(
        index_elements=[replicas.c.replica_id],
        set_={
            "address": insert.excluded.address,
            "peer_address": insert.excluded.peer_address,
            "seen_until_ms": insert.excluded.seen_until_ms,
        },
    )
    return upsert
