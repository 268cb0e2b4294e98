"""A program that leads and writes, started by tests that stop it: `python -m tests.client.writer URL PORT`."""

from __future__ import annotations

import asyncio
import sys
import time

import rota
from rota.client import LeadershipLost, Term

SESSION_S = 1.0
NAME = "writer"


class Resource:
    """A connection to a resource that answers each token with `taken` or `refused`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def write(self, token: int) -> str:
        self._writer.write(f"{token}\n".encode())
        return (await self._reader.readline()).decode().strip()


async def lead(term: Term, resource: Resource) -> None:
    """Write as fast as may be. The token is read once: this program trusts that it is cancelled in time."""
    token = term.fencing_token
    try:
        async with term:
            print(f"begins with token {token}", flush=True)
            while True:
                await resource.write(token)
                await asyncio.sleep(0.002)
    except LeadershipLost:
        print(f"cancelled at {time.monotonic()}", flush=True)


async def main(url: str, port: int) -> None:
    resource = Resource(*await asyncio.open_connection("127.0.0.1", port))
    late = Resource(*await asyncio.open_connection("127.0.0.1", port))
    async with rota.connect(url, client_id="stopped") as client:
        async with client.leader(NAME, session_timeout=SESSION_S) as election:
            async for term in election.terms():
                await lead(term, resource)
                # As a write that it had begun before it was stopped, and that only now arrives.
                print(f"a late write is {await late.write(term.fencing_token)}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
