"""What counts against quotas: groups, members, topics and bytes of a namespace, and which callers have them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlalchemy import ColumnElement, Text, cast, func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.access.quotas import Held, Stored
from rota.storage.schema import groups, members, offsets, topics


async def read_stored(connection: AsyncConnection, namespace: str, *, counts_bytes: bool) -> Stored:
    """What the namespace has. Bytes are nearly those of the requests: metadata is kept as text, a third longer.

    To count bytes the engine reads all of them, so without `counts_bytes` they are 0.
    """
    found = await connection.scalars(select(groups.c.group_id).where(groups.c.namespace == namespace))
    static = select(members.c.group_id, members.c.group_instance_id).where(
        members.c.namespace == namespace, members.c.group_instance_id.is_not(None)
    )
    instances = frozenset((row[0], row[1]) for row in (await connection.execute(static)).all())
    by_caller = await _held(connection, namespace, counts_bytes)
    of_offsets = await _offset_bytes(connection, namespace) if counts_bytes else {}
    of_topics = await _topic_bytes(connection, namespace)
    octets = sum(held.bytes for held in by_caller.values()) + sum(of_offsets.values()) + sum(of_topics.values())
    count = sum(held.members for held in by_caller.values())
    return Stored(set(found), count, instances, set(of_topics), octets, of_offsets, by_caller)


async def _held(connection: AsyncConnection, namespace: str, counts_bytes: bool) -> dict[str, Held]:
    """By subject; members without a known caller have the empty one."""
    brought: ColumnElement[Any] = literal(0)
    if counts_bytes:
        brought = func.length(cast(members.c.protocols, Text)) + func.length(members.c.assignment)
    totals = select(members.c.subject, members.c.group_id, func.count(), func.sum(brought))
    of_groups = totals.where(members.c.namespace == namespace).group_by(members.c.subject, members.c.group_id)
    rows: defaultdict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for subject, *row in (await connection.execute(of_groups)).all():
        rows[subject].append((row[0], row[1], int(row[2])))
    return {
        subject: Held(frozenset(each[0] for each in held), sum(each[1] for each in held), sum(each[2] for each in held))
        for subject, held in rows.items()
    }


async def _offset_bytes(connection: AsyncConnection, namespace: str) -> dict[str, int]:
    octets = func.sum(func.length(offsets.c.metadata) + func.length(offsets.c.topic) + 16)
    totals = select(offsets.c.group_id, octets).where(offsets.c.namespace == namespace).group_by(offsets.c.group_id)
    return {group_id: int(total) for group_id, total in (await connection.execute(totals)).all()}


async def _topic_bytes(connection: AsyncConnection, namespace: str) -> dict[str, int]:
    octets = func.length(cast(topics.c.attributes, Text))
    found = await connection.execute(
        select(topics.c.topic, octets).where(topics.c.namespace == namespace, topics.c.partitions > 0)
    )
    return {topic: int(total) for topic, total in found.all()}
