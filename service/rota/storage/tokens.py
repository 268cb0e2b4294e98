"""The table of API tokens, and each change of it with its line in the journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import Row, bindparam, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.access.rules import Rule
from rota.access.tokens import TokenRecord
from rota.protocol.messages import Act
from rota.storage.schema import tokens
from rota.storage.token_trail import note_act

_ALL = select(tokens).order_by(tokens.c.created_at_ms, tokens.c.token_id)


async def read_tokens(connection: AsyncConnection) -> list[TokenRecord]:
    """All of them, also those that are over, oldest first."""
    return [_record(row) for row in (await connection.execute(_ALL)).all()]


async def add_token(connection: AsyncConnection, record: TokenRecord, act: Act) -> None:
    """Keep it; the journal records the author, as in the methods below."""
    grants = msgspec.json.encode(record.grants).decode()
    await connection.execute(tokens.insert().values(**{**msgspec.structs.asdict(record), "grants": grants}))
    await note_act(connection, "Create", record.name, record.token_id, act)


async def revoke_token(connection: AsyncConnection, token_id: str, at_ms: int, act: Act) -> bool:
    """False if there is none, or if it was revoked before."""
    statement = update(tokens).where(tokens.c.token_id == token_id, tokens.c.revoked_at_ms.is_(None))
    revoked = statement.values(revoked_at_ms=at_ms).returning(tokens.c.name)
    return await _note_if_done(connection, "Revoke", await connection.scalar(revoked), token_id, act)


async def note_uses(connection: AsyncConnection, used_at_ms: Mapping[str, int]) -> None:
    """When tokens were used, by their ids. Replicas note the same token; the latest time stays."""
    earlier = or_(tokens.c.last_used_at_ms.is_(None), tokens.c.last_used_at_ms < bindparam("at_ms"))
    statement = update(tokens).where(tokens.c.token_id == bindparam("id"), earlier)
    uses = [{"id": token_id, "at_ms": at_ms} for token_id, at_ms in used_at_ms.items()]
    await connection.execute(statement.values(last_used_at_ms=bindparam("at_ms")), uses)


async def forget_token(connection: AsyncConnection, token_id: str, act: Act) -> bool:
    """Remove the row; False if there is none."""
    removed = tokens.delete().where(tokens.c.token_id == token_id).returning(tokens.c.name)
    return await _note_if_done(connection, "Forget", await connection.scalar(removed), token_id, act)


async def _note_if_done(connection: AsyncConnection, done: str, name: str | None, token_id: str, act: Act) -> bool:
    """A change of no row, which returns no name, is no act."""
    if name is not None:
        await note_act(connection, done, name, token_id, act)
    return name is not None


def _record(row: Row[Any]) -> TokenRecord:
    columns = dict(row._mapping)
    return TokenRecord(**{**columns, "grants": msgspec.json.decode(columns["grants"], type=tuple[Rule, ...])})
