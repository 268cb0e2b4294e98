"""Requests that wait for their reply, by the number under which the shard knows them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rota.replica.ports import Answer


@dataclass(slots=True, eq=False)
class Call:
    """One request under way. `timer` ends its parking; the future is done exactly once."""

    number: int
    future: asyncio.Future[Answer]
    timer: asyncio.TimerHandle | None = None

    def finish(self, answer: Answer) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if not self.future.done():
            self.future.set_result(answer)
