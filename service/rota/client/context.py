"""What the members of one client share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from rota.client.pulse import Pulse
from rota.client.stats import ClientStats
from rota.client.transports.port import Transport
from rota.client.troubles import TroubleLog


@dataclass(slots=True)
class ClientContext:
    """`jitter` gives random numbers from 0 to 1; with a `pulse`, members are kept alive while their loop is blocked."""

    transport: Transport
    jitter: Callable[[], float] = random.random
    pulse: Pulse | None = None
    troubles: TroubleLog = field(default_factory=TroubleLog)
    stats: ClientStats = field(default_factory=ClientStats)
    members: WeakSet[Any] = field(default_factory=WeakSet)
    """Those that were entered and are not over."""

    def check_deadlines(self) -> None:
        """The machine was asleep: shares may be lost that no timer has noticed."""
        for member in tuple(self.members):
            member.check_deadline()

    async def close_members(self) -> None:
        """Close those that were started and not closed; blocks of theirs that enclose the client's have their end."""
        await asyncio.gather(*(member.close() for member in tuple(self.members) if member.is_open))
