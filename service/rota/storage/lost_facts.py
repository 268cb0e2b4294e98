"""What a store held before it went back to an earlier state, and what of it is lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.protocol.ids import NO_SHARD
from rota.replica.ports import Floor
from rota.storage.raising import highest_in
from rota.storage.schema import groups, offsets, shards, store, tokens


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
    """A group that lost its last generations; `present` is 0 where the whole group is lost."""

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
