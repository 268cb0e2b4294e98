"""A FastAPI service of which one replica does the billing, and the others are ready to.

    ROTA_URL=http://localhost:8080 uvicorn examples.leader_in_fastapi.app:app

Every replica answers requests. `/healthz` is 200 for as long as it does: a rollout must not wait for a leader, and a
restart cures neither a broken database nor a coordinator that cannot be reached. Its body says how the billing stands,
for an alert. SIGTERM is uvicorn's: it ends the lifespan, and with it the leadership, so another replica leads at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

import rota
from rota.client import Client, Election, Term

ROUND_S = 0.05
RETRY_S = 30.0
"""After a rejection that only an operator can change, such as by a rule."""

log = logging.getLogger("billing")


class Billing:
    """What only the leader may do."""

    def __init__(self) -> None:
        self.rounds = 0
        self.written_with = 0

    async def run(self, term: Term) -> None:
        """Called in each term, and cancelled when the term is lost. An exception ends the term, not the candidacy."""
        while True:
            # Send the token with each write; the receiver rejects older ones: see docs/fencing.md.
            self.written_with = term.fencing_token
            self.rounds += 1
            await asyncio.sleep(ROUND_S)


class Campaign:
    """Keeps this replica a candidate, whatever happens, and knows how that stands."""

    def __init__(self, billing: Billing) -> None:
        self.billing = billing
        self.election: Election | None = None
        self.rejection = ""
        """Why the coordinator rejected this replica for good."""

    async def run(self, client: Client) -> None:
        session_timeout_ms = int(os.environ.get("ROTA_SESSION_TIMEOUT_MS", "15000"))
        while True:
            try:
                async with client.leader("billing", session_timeout=session_timeout_ms / 1000) as self.election:
                    await self.election.run(self.billing.run, retry=True)
            except Exception as error:
                log.exception("not a candidate for billing")
                self.rejection = str(error)
            await asyncio.sleep(RETRY_S)

    @property
    def standing(self) -> str:
        """One line for people and alerts."""
        election = self.election
        if election is not None and election.is_leader:
            return "this replica leads"
        if election is not None and election.trouble:
            return f"the coordinator does not serve this replica: {election.trouble}"
        if election is not None and election.failure is not None:
            return f"the billing failed here, {election.failure!r}; this replica is a candidate again soon"
        if election is not None and election.valid_until is not None:
            return "another replica leads"
        return f"this replica was rejected: {self.rejection}" if self.rejection else "no leader is known yet"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Campaign for as long as the service runs; leaving hands over at once."""
    app.state.campaign = campaign = Campaign(app.state.billing)
    async with rota.connect(os.environ.get("ROTA_URL", "http://localhost:8080")) as client:
        running = asyncio.create_task(campaign.run(client))
        yield
        running.cancel()
        await asyncio.wait((running,))


app = FastAPI(title="Billing", lifespan=lifespan)
app.state.billing = Billing()


@app.get("/healthz")
async def healthz() -> dict[str, str]:
    return {"status": "ok", "billing": app.state.campaign.standing}


@app.get("/leader")
async def leader() -> dict[str, int | str]:
    """200 here only, 503 elsewhere: for a load balancer that sends writes to the leader."""
    campaign: Campaign = app.state.campaign
    term = campaign.election.term if campaign.election is not None else None
    if campaign.election is None or term is None:
        raise HTTPException(503, campaign.standing)
    return {
        "token": term.fencing_token,
        "member_id": campaign.election.member.member_id,
        "rounds": campaign.billing.rounds,
    }
