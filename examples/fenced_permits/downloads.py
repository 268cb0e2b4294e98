"""Two downloads at a time over all processes, each with a row of a table that refuses a holder of before.

    ROTA_URL=http://localhost:8080 DATABASE=downloads.db python examples/fenced_permits/downloads.py

The row of a permit keeps the highest token that it has seen. A process that was paused, and does not know yet that
another one has its permit, changes nothing: its token is lower.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3

import rota
from rota.client import Permit, PermitLost

PERMITS = 2
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS slots (permit INTEGER PRIMARY KEY, token INTEGER NOT NULL, writer INTEGER NOT NULL)"
)
WRITE = """
INSERT INTO slots VALUES (?, ?, ?)
ON CONFLICT (permit) DO UPDATE SET token = excluded.token, writer = excluded.writer WHERE token <= excluded.token
"""


def write(database: sqlite3.Connection, permit: int, token: int) -> bool:
    """Write as the holder of this permit; False where a later holder has written already."""
    with database:
        return database.execute(WRITE, (permit, token, os.getpid())).rowcount == 1


async def download(database: sqlite3.Connection, permit: Permit) -> None:
    """Write until another holder has written."""
    while True:
        if not write(database, permit.number, permit.fencing_token):
            print("refused", permit.number, permit.fencing_token, flush=True)
            return
        await asyncio.sleep(0.05)


async def main() -> None:
    database = sqlite3.connect(os.environ.get("DATABASE", "downloads.db"), timeout=30)
    database.execute(SCHEMA)
    session_timeout_ms = int(os.environ.get("ROTA_SESSION_TIMEOUT_MS", "15000"))
    async with rota.connect(os.environ.get("ROTA_URL", "http://localhost:8080")) as client:
        while True:
            try:
                async with client.permits("downloads", PERMITS, session_timeout=session_timeout_ms / 1000) as permit:
                    print("holds", permit.number, permit.fencing_token, flush=True)
                    await download(database, permit)
            except PermitLost as lost:
                print("lost:", lost, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
