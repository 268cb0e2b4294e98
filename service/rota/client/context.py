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
    is_closed: bool = False
    _loop: asyncio.AbstractEventLoop | None = None

    def check_open(self) -> None:
        """Raise RuntimeError where the client was closed: its calls would fail for ever."""
        if self.is_closed:
            raise RuntimeError("this client is closed: connect again for another one")

    def check_usable(self) -> None:
        """Raise RuntimeError where the client was closed, or is used in another event loop than before: its connections
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
        """The machine was asleep: shares may be lost that no timer has noticed."""
        for member in tuple(self.members):
            member._driver.check()

    async def close_members(self) -> None:
        """Close those that were started and not closed; blocks of theirs that enclose the client's have their end."""
        members = [member for member in tuple(self.members) if member.is_open]
        closing = asyncio.gather(*(member.close() for member in members))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            for member in members:
                member._close_now()
            await asyncio.wait((closing,))  # Without connections they could not leave.
            raise
