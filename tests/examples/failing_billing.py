"""The FastAPI example with a billing that fails in its first term."""

from __future__ import annotations

import asyncio

from examples.leader_in_fastapi.app import Billing, app
from rota.client import Term

__all__ = ["app"]


class FailingBilling(Billing):
    """Raises in its first term."""

    terms = 0

    async def run(self, term: Term) -> None:
        self.terms += 1
        if self.terms == 1:
            raise RuntimeError("the database went away")
        self.rounds += 1
        await asyncio.Event().wait()


app.state.billing = FailingBilling()
