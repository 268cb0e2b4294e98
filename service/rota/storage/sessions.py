"""The table of the console's sessions. Rows are removed when a session ends, or by the next sign-in after that."""

from __future__ import annotations

from sqlalchemy import select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.access.sessions import CALLER_BYTES, SessionRecord
from rota.storage.schema import console_sessions

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
