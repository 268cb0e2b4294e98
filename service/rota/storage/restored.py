"""`rota db restored`: make a store safe to serve that was brought back to an earlier state by other means."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.core.replica.ports import Floor, StoreRefused
from rota.protocol.ids import NO_SHARD
from rota.protocol.limits import GENERATIONS_RAISED
from rota.storage.incarnation import highest_in, read_incarnation, start_again
from rota.storage.migrate import MigrationStatus, refuse_missing, usable
from rota.storage.schema import groups, offsets, replicas, shards, store, store_clock_ms, tokens
from rota.storage.store_file import FileLock, Note, read_note, read_standing, write_note
from rota.storage.urls import SqliteLocation, StoreLocation, parse_store_url


@dataclass(frozen=True, slots=True)
class LostCommit:
    """An offset that was committed, and the one that is committed there now."""

    namespace: str
    group_id: str
    topic: str
    partition: int
    lost: int
    present: int | None


@dataclass(frozen=True, slots=True)
class LostGroup:
    """A group that lost its last generations; `present` is 0 if the whole group is lost."""

    namespace: str
    group_id: str
    lost: int
    present: int


@dataclass(frozen=True, slots=True)
class Lost:
    """What one state of a store has and another one lacks."""

    groups: tuple[LostGroup, ...]
    commits: tuple[LostCommit, ...]
    revocations: tuple[str, ...]
    """Names of API tokens that were revoked or forgotten, and are accepted again."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What of a store can be lost, as one transaction sees it."""

    incarnation: str
    last_seqs: Mapping[int, int]
    highest: Floor
    generations: Mapping[tuple[str, str], int]
    offsets: Mapping[tuple[str, str, str, int], int]
    accepted_tokens: Mapping[str, str]
    """Names of the API tokens that were not revoked, by their ids."""


async def read_facts(connection: AsyncConnection) -> Facts:
    incarnation = await connection.scalar(select(store.c.incarnation))
    ends = await connection.execute(select(shards.c.shard_id, shards.c.last_seq).where(shards.c.shard_id != NO_SHARD))
    generations = await connection.execute(select(groups.c.namespace, groups.c.group_id, groups.c.generation_id))
    where = (offsets.c.namespace, offsets.c.group_id, offsets.c.topic, offsets.c.partition)
    committed = await connection.execute(select(*where, offsets.c.offset))
    accepted = select(tokens.c.token_id, tokens.c.name).where(tokens.c.revoked_at_ms.is_(None))
    return Facts(
        str(incarnation or ""),
        {row[0]: row[1] for row in ends},
        await highest_in(connection),
        {(row[0], row[1]): row[2] for row in generations},
        {(row[0], row[1], row[2], row[3]): row[4] for row in committed},
        {row[0]: row[1] for row in await connection.execute(accepted)},
    )


def compare(former: Facts, present: Facts) -> Lost:
    """What `former` has and `present` lacks. The numbers of a raise are no facts: rows are compared."""
    return Lost(
        tuple(_lost_groups(former, present)),
        tuple(_lost_commits(former, present)),
        tuple(
            sorted(present.accepted_tokens[each] for each in present.accepted_tokens.keys() - former.accepted_tokens)
        ),
    )


def _lost_groups(former: Facts, present: Facts) -> Iterator[LostGroup]:
    for name, generation in sorted(former.generations.items()):
        now = present.generations.get(name, 0)
        if now < generation:
            yield LostGroup(*name, generation, now)


def _lost_commits(former: Facts, present: Facts) -> Iterator[LostCommit]:
    for name, offset in sorted(former.offsets.items()):
        now = present.offsets.get(name)
        if now != offset:
            yield LostCommit(*name, offset, now)


@dataclass(frozen=True, slots=True)
class RestoredShard:
    """One shard, as it is served from now on."""

    shard_id: int
    last_seq: int
    """The number of its last line."""
    generation_floor: int
    epoch: int
    former_last_seq: int | None = None
    """The number of its last line before the store went back; None if that is not known."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A store with a new incarnation, and its known losses."""

    incarnation: str
    shards: tuple[RestoredShard, ...]
    lost: Lost | None
    """It is None if the former store could not be read."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """A store that was replaced by a backup."""

    restored: Restored
    kept_as: str
    """Under which name the store stays that was there; empty if there was none."""
    unreadable: str
    """Why that one could not be read; empty if it could."""


async def restored(
    store_url: str, *, raise_by: int = GENERATIONS_RAISED, former_url: str | None = None, force: bool = False
) -> Restored:
    """Give the store a new incarnation, and floors above all that it may have granted. All or nothing.

    `former_url` names the store as it was, if that can still be read.

    Raises:
        StoreRefused: A server uses the store (unless `force`), no server ever did, or the numbers would be used up.
    """
    location = parse_store_url(store_url)
    former_location = parse_store_url(former_url) if former_url is not None else None
    if former_location == location:
        raise StoreRefused("--former is the store as it was, not the store that was restored")
    former = await facts_of(former_location) if former_location is not None else None
    async with _alone(location) as lock:
        known = highest_of(former, read_note(lock) if lock is not None else None)
        async with usable(location, writes=True) as connection:
            await read_incarnation(connection)
            if lock is None and not force:
                await refuse_live_replicas(connection)
            await start_again(connection, raise_by=raise_by, known=known)
            done = await report(connection, former)
            note = await read_standing(connection)
        if lock is not None:
            write_note(lock, note)
    return done


async def report(connection: AsyncConnection, former: Facts | None) -> Restored:
    """What this transaction finds after `start_again`, compared with the facts of the store as it was."""
    wanted = (shards.c.shard_id, shards.c.last_seq, shards.c.generation_floor, shards.c.epoch)
    rows = await connection.execute(select(*wanted).where(shards.c.shard_id != NO_SHARD).order_by(shards.c.shard_id))
    ends = former.last_seqs if former is not None else {}
    found = tuple(RestoredShard(*row, former_last_seq=ends.get(row.shard_id)) for row in rows)
    lost = compare(former, await read_facts(connection)) if former is not None else None
    return Restored(await read_incarnation(connection), found, lost)


async def refuse_live_replicas(connection: AsyncConnection) -> None:
    """Raise `StoreRefused` while a replica is registered, or has a lease."""
    now = store_clock_ms()
    registered = select(replicas.c.replica_id, replicas.c.seen_until_ms - now).where(replicas.c.seen_until_ms > now)
    leases = (
        select(shards.c.replica_id, func.max(shards.c.lease_until_ms - now))
        .where(shards.c.lease_until_ms > now, shards.c.shard_id != NO_SHARD)
        .group_by(shards.c.replica_id)
    )
    live: dict[str, int] = {}
    for statement in (registered, leases):
        for name, left_ms in await connection.execute(statement):
            live[name] = max(live.get(name, 0), left_ms)
    if live:
        raise StoreRefused(
            f"a server may be using this store ({', '.join(sorted(live))}). Stop all servers and run this again: what "
            f"a server that was killed held ends by itself in {-(-max(live.values()) // 1000)} s"
        )


def highest_of(former: Facts | None, note: Note | None) -> Floor:
    """The highest numbers that the store granted before it went back, as far as they are known."""
    known = [each.highest for each in (former, note) if each is not None]
    return Floor(max((each.generation_id for each in known), default=0), max((each.epoch for each in known), default=0))


async def facts_of(location: StoreLocation) -> Facts:
    """The facts of a store that is only read."""
    async with usable(location, writes=False) as connection:
        return await read_facts(connection)


def refuse_other_release(status: MigrationStatus, source: Path) -> None:
    """Raise `StoreRefused` for a backup that this release cannot bring up to its own schema."""
    if status.current is None:
        raise StoreRefused(f"{source} is no store of Rota: it has no schema")
    if status.is_newer:
        raise StoreRefused(
            f"{source} was made by a later release (its schema is at {status.current}, this release knows "
            f"{status.head}): restore it with that release"
        )


@asynccontextmanager
async def _alone(location: StoreLocation) -> AsyncIterator[FileLock | None]:
    """Hold the lock of an embedded store; None on Postgres, which has none."""
    if not isinstance(location, SqliteLocation):
        yield None
        return
    refuse_missing(location)
    with FileLock(location.path) as lock:
        yield lock
