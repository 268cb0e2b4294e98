"""Who owns a shard: claims, renewals and releases, each one statement that the store's clock judges."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    CTE,
    BigInteger,
    Boolean,
    ColumnElement,
    Executable,
    Integer,
    Text,
    bindparam,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.protocol.ids import NO_SHARD
from rota.replica.ports import ShardClaim, ShardOwner
from rota.storage.bulk import GivenRows, given_rows
from rota.storage.schema import shards, store_clock_ms

_ME: ColumnElement[str] = bindparam("me", type_=Text())
_ADDRESS: ColumnElement[str] = bindparam("my_address", type_=Text())
_LEASE_END: ColumnElement[int] = store_clock_ms() + bindparam("lease_ms", type_=BigInteger())
_OWNERS = (
    select(
        shards.c.shard_id,
        shards.c.replica_id,
        shards.c.address,
        shards.c.epoch,
        (shards.c.lease_until_ms - store_clock_ms()).label("lease_left_ms"),
        shards.c.last_seq,
        shards.c.lease_until_ms,
    )
    .where(shards.c.shard_id != NO_SHARD)
    .order_by(shards.c.shard_id)
)


class Leases:
    """The statements on `shards` that move or keep a lease. All lock rows in order of the shard's id."""

    def __init__(self, dialect: str) -> None:
        self._wanted = given_rows(dialect, "wanted", {"shard_id": Integer()})
        self._claim = _claim(dialect, self._wanted)
        self._held = given_rows(dialect, "held", {"shard_id": Integer(), "epoch": BigInteger()})
        ours = lock_in_order(self._held, shards.c.epoch == self._held.table.c.epoch, shards.c.replica_id == _ME)
        update_ours = update(shards).where(shards.c.shard_id == ours.c.shard_id)
        self._renew = update_ours.values(lease_until_ms=_LEASE_END).returning(shards.c.shard_id)
        self._release = update_ours.values(lease_until_ms=store_clock_ms())

    async def claim(
        self,
        connection: AsyncConnection,
        shard_ids: Sequence[int],
        replica_id: str,
        address: str,
        lease_ms: int,
        *,
        steal: bool,
    ) -> list[ShardClaim]:
        values = {"me": replica_id, "my_address": address, "lease_ms": lease_ms, "steal": steal}
        wanted = self._wanted.bind([(shard_id,) for shard_id in sorted(set(shard_ids))])
        taken = (await connection.execute(self._claim, {**values, **wanted})).all()
        return sorted((ShardClaim(*row) for row in taken), key=lambda claim: claim.shard_id)

    async def renew(
        self, connection: AsyncConnection, claims: Sequence[ShardClaim], replica_id: str, lease_ms: int
    ) -> list[int]:
        values = {"me": replica_id, "lease_ms": lease_ms, **self._held.bind(_shards_and_epochs(claims))}
        return sorted((await connection.scalars(self._renew, values)).all())

    async def release(self, connection: AsyncConnection, claims: Sequence[ShardClaim], replica_id: str) -> None:
        await connection.execute(self._release, {"me": replica_id, **self._held.bind(_shards_and_epochs(claims))})

    async def owners(self, connection: AsyncConnection) -> list[ShardOwner]:
        rows = (await connection.execute(_OWNERS)).all()
        return [ShardOwner(*row[:6], lease_until_ms=row.lease_until_ms) for row in rows]


def _claim(dialect: str, wanted: GivenRows) -> Executable:
    first_time = (
        select(wanted.table.c.shard_id, _ME, _ADDRESS, literal(1), _LEASE_END, literal(0))
        .select_from(wanted.table)
        .order_by(wanted.table.c.shard_id)
    )
    engine = postgresql if dialect == "postgresql" else sqlite
    insert = engine.insert(shards).from_select(
        ["shard_id", "replica_id", "address", "epoch", "lease_until_ms", "last_seq"], first_time
    )
    free = or_(
        shards.c.lease_until_ms <= store_clock_ms(), shards.c.replica_id == _ME, bindparam("steal", type_=Boolean())
    )
    claim: Executable = insert.on_conflict_do_update(
        index_elements=[shards.c.shard_id],
        set_={
            "replica_id": insert.excluded.replica_id,
            "address": insert.excluded.address,
            # Also when it was ours: a write of ours that still hangs somewhere must not pass any more.
            "epoch": shards.c.epoch + 1,
            "lease_until_ms": _LEASE_END,
        },
        where=free,
    ).returning(shards.c.shard_id, shards.c.epoch, shards.c.last_seq)
    return claim


def lock_in_order(given: GivenRows, *conditions: ColumnElement[bool]) -> CTE:
    """The given shards that meet `conditions`, locked from the lowest id up, so that two owners cannot deadlock.

    Who waits for a lock looks at the conditions again when it has it.
    """
    joined = select(given.table).join_from(given.table, shards, shards.c.shard_id == given.table.c.shard_id)
    return joined.where(*conditions).order_by(shards.c.shard_id).with_for_update(of=shards).cte("locked")


def _shards_and_epochs(claims: Sequence[ShardClaim]) -> list[tuple[int, int]]:
    return [(claim.shard_id, claim.epoch) for claim in claims]
