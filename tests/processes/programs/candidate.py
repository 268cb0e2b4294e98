"""The README's election, with a leader that works for an hour. It prints when it leads, and when its run has ended."""

from __future__ import annotations

import asyncio
import os
import time

import rota
from rota.client import Term

DRAIN_MS = int(os.environ.get("DRAIN_MS", "0"))


async def write(term: Term) -> None:
    print("leads", term.fencing_token, time.monotonic(), flush=True)
    await term.stopping.wait()
    print("stops", flush=True)
    await asyncio.sleep(3_600)


async def main() -> None:
    session_timeout_ms = int(os.environ["SESSION_MS"])
    async with rota.connect(os.environ["ROTA_URL"]) as client:
        async with client.leader(os.environ["GROUP"], session_timeout=session_timeout_ms / 1000) as election:
            await election.run(write, drain_timeout=DRAIN_MS / 1000)
    print("ended", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
