"""Workers that share the shards of a Postgres table, and count each row exactly once whatever dies in between.

    ROTA_URL=http://localhost:8080 DATABASE=postgresql://localhost/rota python examples/worker_pool/worker.py

The tables are in the database that Rota uses, so a worker's counts, its progress and the check that the shard is still
its own are one transaction.
"""

from __future__ import annotations

import asyncio
import os

import asyncpg

import rota
from rota.client import Shard

GROUP, TOPIC, SHARDS = "counters", "documents", 8
BATCH = 5
SCHEMA = """
CREATE TABLE documents (shard integer, position bigint, words integer NOT NULL, PRIMARY KEY (shard, position));
CREATE TABLE counts (shard integer PRIMARY KEY, words bigint NOT NULL, documents bigint NOT NULL);
"""
NEXT = "SELECT position, words FROM documents WHERE shard = $1 AND position >= $2 ORDER BY position LIMIT $3"
ADD = """
INSERT INTO counts VALUES ($1, $2, $3)
ON CONFLICT (shard) DO UPDATE SET words = counts.words + $2, documents = counts.documents + $3
"""
PROGRESS = "SELECT rota.committed_offset('default', $1, $2, $3)"
COMMIT = "SELECT rota.commit_offsets('default', $1, $2, $3, $4, $5, $6)"
REFUSED = {"RT001", "RT002", "RT003", "RT004", "40001", "40P01"}
CUT_OFF = {"25P03", "08003", "08006", "57P01"}
"""Postgres ended the connection: this process had been away in the middle of a transaction."""


class Counter:
    """Counts the documents of a shard."""

    def __init__(self, database: asyncpg.Pool) -> None:
        self._database = database

    async def work(self, shard: Shard) -> None:
        """Called for each shard that this process gets; cancelled when it has to give it up."""
        while not shard.stopping.is_set():
            try:
                found = await self._count_some(shard)
            except asyncpg.InterfaceError:
                found = 0  # The connection was ended while it was not in use; the pool opens another one.
            except asyncpg.PostgresError as error:
                # The generation is over, and nothing of this was committed. If the shard is still ours in the next
                # one, we go on with the new token; if not, this task is about to be cancelled.
                if error.sqlstate not in REFUSED | CUT_OFF:
                    raise
                found = 0
            if not found:
                await asyncio.sleep(0.05)

    async def _count_some(self, shard: Shard) -> int:
        shard.raise_if_lost()
        member_id, generation_id = shard.member_id, shard.generation_id
        async with self._database.acquire() as connection, connection.transaction():
            start = max(0, await connection.fetchval(PROGRESS, GROUP, TOPIC, shard.partition))
            rows = await connection.fetch(NEXT, shard.partition, start, BATCH)
            if rows:
                await connection.execute(ADD, shard.partition, sum(row["words"] for row in rows), len(rows))
                reached = rows[-1]["position"] + 1
                await connection.execute(COMMIT, GROUP, generation_id, member_id, TOPIC, shard.partition, reached)
            return len(rows)


async def main() -> None:
    """Work until SIGTERM or SIGINT: then transactions are completed, and other workers acquire the shards at once."""
    url = os.environ.get("ROTA_URL", "http://localhost:8080")
    session_timeout_ms = int(os.environ.get("ROTA_SESSION_TIMEOUT_MS", "15000"))
    # A worker that is paused in a transaction must not hold its rows for longer than it holds its shards.
    patience = {"idle_in_transaction_session_timeout": str(session_timeout_ms)}
    async with (
        asyncpg.create_pool(os.environ["DATABASE"], min_size=1, max_size=SHARDS, server_settings=patience) as database,
        rota.connect(url) as client,
    ):
        topics = {TOPIC: SHARDS}
        pool = client.worker_pool(GROUP, topics, Counter(database).work, session_timeout=session_timeout_ms / 1000)
        print("working", flush=True)
        await pool.run()


if __name__ == "__main__":
    asyncio.run(main())
