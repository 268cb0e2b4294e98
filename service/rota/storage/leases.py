"""Leases of shards, and the live replicas: each change is one statement that the store's clock judges."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    Boolean,
    ColumnElement,
    Executable,
    FromClause,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    column,
    delete,
    func,
    literal,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import NamedFromClause
from sqlalchemy.types import TypeEngine

from rota.core.replica.ports import EPOCHS_SKIPPED, RELEASED, Floor, Renewal, Replica, ShardClaim, ShardOwner
from rota.protocol.ids import NO_SHARD
from rota.storage.schema import POSTGRES_SCHEMA, replicas, shards, store, store_clock_ms

# --- rows that a statement is given -----------------------------------------------------------------

# A list of rows travels to either engine as a statement's parameters. Postgres gets one array per column and `unnest`s
# them: one plan for any number of rows, and unlike COPY it can upsert. SQLite reads a JSON array as a table.


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Rows that a statement reads as a table: write it against `table.c`, run it with `bind(rows)`."""

    table: NamedFromClause
    name: str
    columns: Mapping[str, TypeEngine[Any]]
    is_json: bool
    """All rows travel as one JSON document, as for SQLite."""

    def bind(self, rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """The parameters of the statement."""
        if self.is_json:
            return {self.name: json.dumps([list(row) for row in rows])}
        return {f"{self.name}_{key}": values for key, values in zip(self.columns, zip(*rows, strict=True), strict=True)}


def given_rows(dialect: str, name: str, columns: Mapping[str, TypeEngine[Any]]) -> GivenRows:
    """At least one row with these columns, given to a statement. On SQLite: numbers, text and nulls only."""
    is_json = dialect != "postgresql"
    table = _read_from_json(name, columns) if is_json else _unnested(name, columns)
    return GivenRows(table, name, columns, is_json)


def _unnested(name: str, columns: Mapping[str, TypeEngine[Any]]) -> NamedFromClause:
    arrays = [bindparam(f"{name}_{key}", type_=ARRAY(type_)) for key, type_ in columns.items()]
    typed = [column(key, type_) for key, type_ in columns.items()]
    return func.unnest(*arrays).table_valued(*typed, name=name).render_derived()


def _read_from_json(name: str, columns: Mapping[str, TypeEngine[Any]]) -> NamedFromClause:
    each = func.json_each(bindparam(name, type_=Text())).table_valued("value")
    picked = [
        func.json_extract(each.c.value, f"$[{i}]", type_=type_).label(key)
        for i, (key, type_) in enumerate(columns.items())
    ]
    return select(*picked).subquery(name)


# --- leases -----------------------------------------------------------------------------------------

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
        case((shards.c.claimed_epoch == shards.c.epoch, shards.c.claimed_seq)).label("claimed_seq"),
        select(store.c.incarnation).scalar_subquery().label("incarnation"),
        shards.c.generation_floor,
        replicas.c.peer_address,
    )
    .join_from(shards, replicas, shards.c.replica_id == replicas.c.replica_id, isouter=True)
    .where(shards.c.shard_id != NO_SHARD)
    .order_by(shards.c.shard_id)
)


class Leases:
    """The statements on `shards` that move or keep a lease. All lock rows in order of the shard's id."""

    def __init__(self, dialect: str) -> None:
        self._wanted = given_rows(dialect, "wanted", {"shard_id": Integer(), "known_epoch": BigInteger()})
        self._former = _former(dialect, self._wanted)
        self._claim = _claim(dialect, self._wanted)
        self._held = given_rows(dialect, "held", {"shard_id": Integer(), "epoch": BigInteger()})
        is_ours = (shards.c.epoch == self._held.table.c.epoch, shards.c.replica_id == _ME)
        ours = lock_in_order(self._held, *is_ours)
        # A renewal that was given up may arrive after the release: it must not keep the shard from its next owner.
        kept = lock_in_order(self._held, *is_ours, shards.c.lease_until_ms != RELEASED)
        # A lease that is over proves nothing: another replica may have had the shard since, in lines that were lost.
        is_held = shards.c.lease_until_ms > store_clock_ms()
        timeline = case((is_held, func.coalesce(_timeline(dialect), shards.c.timeline)), else_=shards.c.timeline)
        renewed = {"lease_until_ms": _LEASE_END, "timeline": timeline}
        self._renew = (
            update(shards)
            .where(shards.c.shard_id == kept.c.shard_id)
            .values(renewed)
            .returning(shards.c.shard_id, shards.c.last_seq, shards.c.generation_floor)
        )
        durable = {"shard_id": Integer(), "epoch": BigInteger(), "last_seq": BigInteger()}
        self._durable = given_rows(dialect, "durable", durable)
        self._confirm = _confirm(self._durable.table)
        self._release = update(shards).where(shards.c.shard_id == ours.c.shard_id).values(lease_until_ms=RELEASED)
        floors = {"shard_id": Integer(), "generation_floor": Integer(), "epoch_floor": BigInteger()}
        self._floors = given_rows(dialect, "floors", floors)
        self._raise_floors = _raise_floors(dialect, self._floors)

    async def claim(
        self,
        connection: AsyncConnection,
        shard_ids: Sequence[int],
        replica_id: str,
        address: str,
        lease_ms: int,
        *,
        steal: bool,
        known_epochs: Mapping[int, int] | None,
    ) -> list[ShardClaim]:
        """In one transaction: the first statement locks the rows of the second, and reads their former state."""
        known = known_epochs or {}
        wanted = self._wanted.bind([(each, known.get(each, 0)) for each in sorted(set(shard_ids))])
        before = {"me": replica_id, "steal": steal, "any_epoch": known_epochs is None, **wanted}
        values = {"my_address": address, "lease_ms": lease_ms, **before}
        former = {row.shard_id: row for row in await connection.execute(self._former, before)}
        taken = (await connection.execute(self._claim, values)).all()
        claims = []
        for row in taken:
            was = former.get(row.shard_id)
            found = (was.epoch, was.replica_id, bool(was.is_other_timeline)) if was is not None else ()
            claims.append(ShardClaim(*row, *found))
        return sorted(claims, key=lambda claim: claim.shard_id)

    async def raise_floors(self, connection: AsyncConnection, floors: Mapping[int, Floor]) -> None:
        rows = [(shard_id, *floors[shard_id]) for shard_id in sorted(floors)]
        await connection.execute(self._raise_floors, self._floors.bind(rows))

    async def renew(
        self, connection: AsyncConnection, claims: Sequence[ShardClaim], replica_id: str, lease_ms: int
    ) -> list[Renewal]:
        values = {"me": replica_id, "lease_ms": lease_ms, **self._held.bind(_shards_and_epochs(claims))}
        return sorted(Renewal(*row) for row in await connection.execute(self._renew, values))

    async def confirm(self, connection: AsyncConnection, claims: Sequence[ShardClaim], replica_id: str) -> list[int]:
        rows = [(claim.shard_id, claim.epoch, claim.last_seq) for claim in claims]
        values = {"me": replica_id, **self._durable.bind(rows)}
        return sorted((await connection.scalars(self._confirm, values)).all())

    async def release(self, connection: AsyncConnection, claims: Sequence[ShardClaim], replica_id: str) -> None:
        await connection.execute(self._release, {"me": replica_id, **self._held.bind(_shards_and_epochs(claims))})

    async def owners(self, connection: AsyncConnection) -> list[ShardOwner]:
        rows = (await connection.execute(_OWNERS)).all()
        return [
            ShardOwner(
                *row[:6],
                lease_until_ms=row.lease_until_ms,
                claimed_seq=row.claimed_seq,
                incarnation=row.incarnation or "",
                generation_floor=row.generation_floor,
                peer_address=row.peer_address or "",
            )
            for row in rows
        ]


def _timeline(dialect: str) -> ColumnElement[Any]:
    """The server's timeline now; null if it is unknown. A subquery, so that it is read once and not for each row."""
    if dialect != "postgresql":
        return null()
    function: Any = getattr(func, POSTGRES_SCHEMA).timeline(type_=Text())
    return select(function).scalar_subquery()


def _confirm(durable: FromClause) -> Executable:
    return (
        select(shards.c.shard_id)
        .join_from(durable, shards, shards.c.shard_id == durable.c.shard_id)
        .where(shards.c.epoch == durable.c.epoch, shards.c.replica_id == _ME, shards.c.last_seq >= durable.c.last_seq)
    )


def _is_free(known_epoch: ColumnElement[int]) -> ColumnElement[bool]:
    """Not if another replica has claimed it since the owners were read: no read has seen its lease."""
    is_as_known = or_(shards.c.epoch <= known_epoch, bindparam("any_epoch", type_=Boolean()))
    is_over = and_(shards.c.lease_until_ms <= store_clock_ms(), is_as_known)
    return or_(is_over, shards.c.replica_id == _ME, bindparam("steal", type_=Boolean()))


def _former(dialect: str, wanted: GivenRows) -> Executable:
    """What a claim finds, locked: if the lease is over now, no other replica can renew it."""
    is_other = shards.c.timeline != _timeline(dialect)
    return (
        select(shards.c.shard_id, shards.c.epoch, shards.c.replica_id, is_other.label("is_other_timeline"))
        .join_from(wanted.table, shards, shards.c.shard_id == wanted.table.c.shard_id)
        .where(_is_free(wanted.table.c.known_epoch))
        .order_by(shards.c.shard_id)
        .with_for_update(of=shards)
    )


def _claim(dialect: str, wanted: GivenRows) -> Executable:
    timeline, none = _timeline(dialect), literal(0)
    first_epoch = wanted.table.c.known_epoch + 1
    first_time = (
        select(wanted.table.c.shard_id, _ME, _ADDRESS, first_epoch, _LEASE_END, none, first_epoch, none, timeline)
        .select_from(wanted.table)
        .order_by(wanted.table.c.shard_id)
    )
    columns = [
        "replica_id",
        "address",
        "epoch",
        "lease_until_ms",
        "last_seq",
        "claimed_epoch",
        "claimed_seq",
        "timeline",
    ]
    engine = postgresql if dialect == "postgresql" else sqlite
    insert = engine.insert(shards).from_select(["shard_id", *columns], first_time)
    skipped = case((shards.c.timeline != timeline, EPOCHS_SKIPPED), else_=0)
    # Also when it was ours: a write of ours that still hangs somewhere must not pass any more.
    last_epoch = _greatest(dialect, shards.c.epoch, shards.c.epoch_floor, insert.excluded.epoch - 1)
    next_epoch = last_epoch + 1 + skipped
    claim: Executable = insert.on_conflict_do_update(
        index_elements=[shards.c.shard_id],
        set_={
            "replica_id": insert.excluded.replica_id,
            "address": insert.excluded.address,
            "epoch": next_epoch,
            "lease_until_ms": _LEASE_END,
            "claimed_epoch": next_epoch,
            "claimed_seq": shards.c.last_seq,
            # The renewals write another one: until then, each claim finds that it is another.
            "timeline": func.coalesce(shards.c.timeline, insert.excluded.timeline),
        },
        where=_is_free(insert.excluded.epoch - 1),
    ).returning(shards.c.shard_id, shards.c.epoch, shards.c.last_seq, shards.c.generation_floor)
    return claim


def _raise_floors(dialect: str, floors: GivenRows) -> Executable:
    given = floors.table.c
    unclaimed = (
        select(
            given.shard_id,
            *(literal(each) for each in ("", "", 0, 0, 0)),
            given.generation_floor,
            given.epoch_floor,
        )
        .select_from(floors.table)
        .order_by(given.shard_id)
    )
    columns = ["shard_id", "replica_id", "address", "epoch", "lease_until_ms", "last_seq"]
    engine = postgresql if dialect == "postgresql" else sqlite
    insert = engine.insert(shards).from_select([*columns, "generation_floor", "epoch_floor"], unclaimed)
    raised = {
        name: _greatest(dialect, shards.c[name], insert.excluded[name]) for name in ("generation_floor", "epoch_floor")
    }
    upsert: Executable = insert.on_conflict_do_update(index_elements=[shards.c.shard_id], set_=raised)
    return upsert


def _greatest(dialect: str, *values: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.greatest(*values) if dialect == "postgresql" else func.max(*values)


def lock_in_order(given: GivenRows, *conditions: ColumnElement[bool]) -> CTE:
    """The given shards that meet `conditions`, locked from the lowest id up, so that two owners cannot deadlock.

    A statement that waits for a lock checks the conditions again when it has it.
    """
    joined = select(given.table).join_from(given.table, shards, shards.c.shard_id == given.table.c.shard_id)
    return joined.where(*conditions).order_by(shards.c.shard_id).with_for_update(of=shards).cte("locked")


def _shards_and_epochs(claims: Sequence[ShardClaim]) -> list[tuple[int, int]]:
    return [(claim.shard_id, claim.epoch) for claim in claims]


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
