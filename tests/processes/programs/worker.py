"""A worker of a pool: it writes each position of its shards into a ledger, and stores it as progress.

A line of the ledger: process id, partition, position, fencing token, and the time of the machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import os
import time

import rota
from rota.client import Shard

STEP_S = 0.005
NEVER_MS = 3_600_000
"""Progress is committed only where a shard is given up."""


async def deliver(shard: Shard) -> None:
    position = await shard.position()
    while not shard.stopping.is_set():
        line = f"{os.getpid()} {shard.partition} {position} {shard.fencing_token} {time.monotonic()}\n"
        os.write(LEDGER, line.encode())
        position += 1
        shard.store(position)
        await asyncio.sleep(STEP_S)


async def main() -> None:
    topics = {"parcels": int(os.environ["PARTITIONS"])}
    session_timeout_ms = int(os.environ["SESSION_MS"])
    async with rota.connect(os.environ["ROTA_URL"]) as client:
        pool = client.worker_pool(
            os.environ["GROUP"],
            topics,
            deliver,
            session_timeout=session_timeout_ms / 1000,
            auto_commit_interval=NEVER_MS / 1000,
        )
        print("starts", flush=True)
        await pool.run()
    print("ended", flush=True)


if __name__ == "__main__":
    LEDGER = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    asyncio.run(main())
