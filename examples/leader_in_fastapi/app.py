"""A FastAPI service of which one replica does the billing, and the others are ready to.

    ROTA_URL=http://localhost:8080 uvicorn examples.leader_in_fastapi.app:app

Every replica answers requests, and `/healthz` says nothing of who leads: a rollout must not wait for that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

import rota
from rota.client import Election, Term

ROUND_S = 0.05


class Billing:
    """What only the leader may do."""

    def __init__(self) -> None:
        self.rounds = 0
        self.written_with = 0

    async def run(self, term: Term) -> None:
        """Called in each term, and cancelled when the term is lost."""
        while True:
            # What is written to gets the token along, and refuses older ones: see docs/fencing.md.
            self.written_with = term.token
            self.rounds += 1
            await asyncio.sleep(ROUND_S)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Campaign for as long as the service runs; leaving hands over at once."""
    url = os.environ.get("ROTA_URL", "http://localhost:8080")
    session_timeout_ms = int(os.environ.get("ROTA_SESSION_TIMEOUT_MS", "10000"))
    async with (
        rota.connect(url) as client,
        client.leader("billing", session_timeout_ms=session_timeout_ms) as election,
        asyncio.TaskGroup() as tasks,
    ):
        app.state.election, app.state.billing = election, Billing()
        running = tasks.create_task(election.run(app.state.billing.run))
        yield
        running.cancel()


app = FastAPI(title="Billing", lifespan=lifespan)


@app.get("/healthz")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@app.get("/leader")
async def leader() -> dict[str, int | str]:
    """200 here only, 503 elsewhere: for a load balancer that sends writes to the leader."""
    election: Election = app.state.election
    if election.term is None:
        raise HTTPException(503, "another replica leads")
    return {"token": election.term.token, "member_id": election.member.member_id, "rounds": app.state.billing.rounds}
