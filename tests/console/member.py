"""A member of a group as a process of its own, to be killed: `… -m tests.console.member URL GROUP NAME SESSION_MS`."""

from __future__ import annotations

import asyncio
import sys

import rota
from rota.client import Consumer

TOPICS = {"documents": 12, "invoices": 6}


async def take_part(url: str, group_id: str, name: str, session_ms: int) -> None:
    """Be a worker of the group, or for a group that is called `…-writer` a candidate, until the process ends."""
    async with rota.connect(url, client_id=name) as client:
        if group_id.endswith("-writer"):
            async with client.leader(group_id, session_timeout=session_ms / 1000) as election:
                async for term in election.terms():
                    print(f"{name} leads with {term.fencing_token}", flush=True)
                    await term.lost.wait()
        consumer: Consumer = client.consumer(group_id, topics=list(TOPICS), session_timeout=session_ms / 1000)
        async with consumer:
            async for assigned in consumer.assignments():
                print(f"{name} holds {len(assigned.share)}", flush=True)


if __name__ == "__main__":
    server_url, group, member_name, session = sys.argv[1:]
    asyncio.run(take_part(server_url, group, member_name, int(session)))
