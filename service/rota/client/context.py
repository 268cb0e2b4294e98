"""State that the members of one client share."""

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
    """`jitter` returns random numbers from 0 to 1; a `pulse` keeps members alive while their loop is blocked."""

    transport: Transport
    jitter: Callable[[], float] = random.random
    pulse: Pulse | None = None
    troubles: TroubleLog = field(default_factory=TroubleLog)
    stats: ClientStats = field(default_factory=ClientStats)
    members: WeakSet[Any] = field(default_factory=WeakSet)
    """Members that were entered and have not ended."""
    is_closed: bool = False
    _loop: asyncio.AbstractEventLoop | None = None

    def check_open(self) -> None:
        """Raise RuntimeError if the client was closed: its calls would fail forever."""
        if self.is_closed:
            raise RuntimeError("this client is closed: connect again for another one")

    def check_usable(self) -> None:
        """Raise RuntimeError if the client was closed, or is used in another event loop than before: its connections
        belong to the first.
        """
        self.check_open()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError(
                "this client belongs to another event loop: connect inside of the function that asyncio.run calls, "
                "once for each asyncio.run; threads use rota.client.sync"
            )

    def check_deadlines(self) -> None:
        """Check the deadlines after the machine was asleep: timers have not noticed lost shares."""
        for member in tuple(self.members):
            member._driver.check()

    async def close_members(self) -> None:
        """Close members that were started and not closed. Blocks that enclose the client's close their own members."""
        members = [member for member in tuple(self.members) if member.is_open]
        closing = asyncio.gather(*(member.close() for member in members))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            for member in members:
                member._close_now()
            await asyncio.wait((closing,))  # Without connections they could not leave.
            raise
