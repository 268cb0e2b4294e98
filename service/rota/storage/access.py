"""What a store keeps of callers: API tokens and their journal lines, console sessions, and what quotas count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Executable, Text, bindparam, cast, func, literal, or_, select, true, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.core.access.quotas import Held, Stored
from rota.core.access.rules import Rule
from rota.core.access.sessions import CALLER_BYTES, SessionRecord
from rota.core.access.tokens import TokenAct, TokenRecord
from rota.core.group.records import Administered, Entry, encode_entry
from rota.protocol.ids import NO_SHARD
from rota.protocol.messages import Act
from rota.storage.migrate import usable
from rota.storage.schema import (
    console_sessions,
    group_events,
    groups,
    members,
    offsets,
    shards,
    store_clock_ms,
    tokens,
    topics,
)
from rota.storage.urls import parse_store_url

_EPOCH = 1
"""The stream has no owner, so it is never taken over."""
_OPERATION_SUFFIX = "Token"


class TokenTable:
    """The table, for commands beside a server that may be running on the same store.

    One short transaction for each call. Raises `StoreRefused` or `StoreUnavailable`.
    """

    def __init__(self, store_url: str) -> None:
        self._location = parse_store_url(store_url)

    async def read(self) -> list[TokenRecord]:
        async with usable(self._location, writes=False) as connection:
            return await read_tokens(connection)

    async def add(self, record: TokenRecord, act: Act) -> None:
        """Keep a token; the journal records the author, as in the methods below."""
        grants = msgspec.json.encode(record.grants).decode()
        values = {**msgspec.structs.asdict(record), "grants": grants}
        await self._change(tokens.insert().values(**values), "Create", record.token_id, act)

    async def revoke(self, token_id: str, at_ms: int, act: Act) -> None:
        """Do nothing if the token does not exist, or if it was revoked before."""
        changed = update(tokens).where(tokens.c.token_id == token_id, tokens.c.revoked_at_ms.is_(None))
        await self._change(changed.values(revoked_at_ms=at_ms), "Revoke", token_id, act)

    async def forget(self, token_id: str, act: Act) -> None:
        """Remove the token; do nothing if it does not exist."""
        await self._change(tokens.delete().where(tokens.c.token_id == token_id), "Forget", token_id, act)

    async def acts(self, limit: int) -> list[TokenAct]:
        """The last changes of tokens, the newest first; pruned ones are gone."""
        lines = select(group_events.c.at, group_events.c.reason, group_events.c.payload)
        newest = lines.where(group_events.c.shard_id == NO_SHARD).order_by(group_events.c.seq.desc()).limit(limit)
        async with usable(self._location, writes=False) as connection:
            return [_act(at_ms, note, payload) for at_ms, note, payload in await connection.execute(newest)]

    async def _change(self, statement: Executable, done: str, token_id: str, act: Act) -> None:
        """Execute the statement, and append a line if it changed a row."""
        async with usable(self._location, writes=True) as connection:
            name = await connection.scalar(statement.returning(tokens.c.name))  # type: ignore[attr-defined]
            if name is not None:
                await _append(connection, done, name, token_id, act)


async def read_tokens(connection: AsyncConnection) -> list[TokenRecord]:
    """All tokens, also those that are not valid any more, oldest first."""
    rows = await connection.execute(select(tokens).order_by(tokens.c.created_at_ms, tokens.c.token_id))
    return [
        TokenRecord(**{**row._mapping, "grants": msgspec.json.decode(row.grants, type=tuple[Rule, ...])})
        for row in rows.all()
    ]


async def note_uses(connection: AsyncConnection, used_at_ms: Mapping[str, int]) -> None:
    """When tokens were used, by their ids. Replicas note the same token; the latest time stays."""
    earlier = or_(tokens.c.last_used_at_ms.is_(None), tokens.c.last_used_at_ms < bindparam("at_ms"))
    statement = update(tokens).where(tokens.c.token_id == bindparam("id"), earlier)
    uses = [{"id": token_id, "at_ms": at_ms} for token_id, at_ms in used_at_ms.items()]
    await connection.execute(statement.values(last_used_at_ms=bindparam("at_ms")), uses)


async def _append(connection: AsyncConnection, done: str, name: str, token_id: str, act: Act) -> None:
    """Append a line, in the transaction of the change: `Create`, `Revoke` or `Forget`.

    The row of the stream's end stays locked until that is over, so lines count up without a gap in the order in which
    they are committed, in spite of concurrent writers. The time is the store's, after the number is locked.
    """
    engine = postgresql if connection.dialect.name == "postgresql" else sqlite
    first = engine.insert(shards).values(
        shard_id=NO_SHARD, replica_id="", address="", epoch=_EPOCH, lease_until_ms=0, last_seq=1
    )
    moved = first.on_conflict_do_update(index_elements=[shards.c.shard_id], set_={"last_seq": shards.c.last_seq + 1})
    seq, at_ms = (await connection.execute(moved.returning(shards.c.last_seq, store_clock_ms()))).one()
    record = Administered(f"{done}{_OPERATION_SUFFIX}", act.actor, f"{name} {token_id}", act.note, act.origin)
    line = encode_entry(Entry("", "", 0, at_ms, record))
    place = {"shard_id": NO_SHARD, "seq": seq, "epoch": _EPOCH, "at": line.pop("at_ms")}
    await connection.execute(group_events.insert().values(**place, **line))


def _act(at_ms: int, note: str, payload: dict[str, str]) -> TokenAct:
    name, _, token_id = payload["target"].partition(" ")
    done = payload["operation"].removesuffix(_OPERATION_SUFFIX)
    return TokenAct(at_ms, done, name, token_id, Act(payload["actor"], note, payload["origin"]))


MOST_SESSIONS = 10_000
MOST_OF_A_CALLER = 100


async def add_session(connection: AsyncConnection, record: SessionRecord, now_ms: int) -> None:
    """Keep it, in the place of the oldest session of its caller, or of all callers, if there are as many already."""
    digest, expires_at_ms = console_sessions.c.digest, console_sessions.c.expires_at_ms
    await connection.execute(console_sessions.delete().where(expires_at_ms <= now_ms))
    of_caller = digest.startswith(record.digest[: 2 * CALLER_BYTES])
    for which, most in ((of_caller, MOST_OF_A_CALLER), (true(), MOST_SESSIONS)):
        newest = select(digest).where(which).order_by(expires_at_ms.desc(), digest).limit(most - 1)
        await connection.execute(console_sessions.delete().where(which, digest.not_in(newest)))
    values = {"digest": record.digest, "sealed": record.sealed, "expires_at_ms": record.expires_at_ms}
    await connection.execute(console_sessions.insert().values(**values))


async def read_session(connection: AsyncConnection, digest: str) -> SessionRecord | None:
    found = await connection.execute(select(console_sessions).where(console_sessions.c.digest == digest))
    row = found.one_or_none()
    return None if row is None else SessionRecord(row.digest, row.sealed, row.expires_at_ms)


async def end_session(connection: AsyncConnection, digest: str) -> None:
    await connection.execute(console_sessions.delete().where(console_sessions.c.digest == digest))


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
