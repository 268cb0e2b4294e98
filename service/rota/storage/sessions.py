"""The table of the console's sessions. Rows are removed when a session ends, or by the next sign-in after that."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.access.sessions import SessionRecord
from rota.storage.schema import console_sessions

MOST_SESSIONS = 10_000


async def add_session(connection: AsyncConnection, record: SessionRecord, now_ms: int) -> bool:
    """Keep it; False where there are `MOST_SESSIONS` already."""
    await connection.execute(console_sessions.delete().where(console_sessions.c.expires_at_ms <= now_ms))
    count = await connection.scalar(select(func.count()).select_from(console_sessions))
    if (count or 0) >= MOST_SESSIONS:
        return False
    values = {"digest": record.digest, "sealed": record.sealed, "expires_at_ms": record.expires_at_ms}
    await connection.execute(console_sessions.insert().values(**values))
    return True


async def read_session(connection: AsyncConnection, digest: str) -> SessionRecord | None:
    found = await connection.execute(select(console_sessions).where(console_sessions.c.digest == digest))
    row = found.one_or_none()
    return None if row is None else SessionRecord(row.digest, row.sealed, row.expires_at_ms)


async def end_session(connection: AsyncConnection, digest: str) -> None:
    await connection.execute(console_sessions.delete().where(console_sessions.c.digest == digest))
