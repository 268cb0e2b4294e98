"""A single writer under one instance id, with a thread that writes on with its last token, as work does that no program
cancels. It prints when it leads.

Each write is a line, `TOKEN NAME`, to the resource at `RESOURCE_PORT`, which answers with a line.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time

import rota
from rota.client import FencedInstanceId, Term

STEP_S = 0.01


def write_on(term: Term, name: str) -> None:
    with socket.create_connection(("127.0.0.1", int(os.environ["RESOURCE_PORT"]))) as resource:
        answers = resource.makefile()
        while True:
            resource.sendall(f"{term.fencing_token} {name}\n".encode())
            answers.readline()
            time.sleep(STEP_S)


async def lead(term: Term) -> None:
    print("leads", term.fencing_token, flush=True)
    threading.Thread(target=write_on, args=(term, os.environ["NAME"]), daemon=True).start()
    await asyncio.Event().wait()


async def main() -> None:
    session_ms, instance_id = int(os.environ["SESSION_MS"]), os.environ["INSTANCE"]
    async with rota.connect(os.environ["ROTA_URL"]) as client:
        try:
            candidate = client.leader(
                os.environ["GROUP"], session_timeout=session_ms / 1000, group_instance_id=instance_id
            )
            async with candidate as election:
                await election.run(lead)
        except FencedInstanceId:
            print("replaced", flush=True)
    # The thread writes on.
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
