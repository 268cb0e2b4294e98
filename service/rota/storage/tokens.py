"""API tokens in a store: their table, and each change of it as a line in the journal.

The lines are a stream that no shard's owner writes, so each of them locks its end.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from sqlalchemy import Executable, bindparam, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.access.rules import Rule
from rota.access.tokens import TokenAct, TokenRecord
from rota.group.journal import encode_entry
from rota.group.records import Administered, Entry
from rota.protocol.ids import NO_SHARD
from rota.protocol.messages import Act
from rota.storage.migrate import usable
from rota.storage.schema import group_events, shards, store_clock_ms, tokens
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
