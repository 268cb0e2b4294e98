"""State that the members of one client share."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from rota.client.pulse import Pulse
from rota.client.stats import ClientStats
from rota.client.transports.port import Transport
from rota.protocol.defaults import WARN_AGAIN_MS

if TYPE_CHECKING:
    from rota.client.member import Member


_log = logging.getLogger("rota.client")


@dataclass(slots=True)
class _Trouble:
    since_ms: int
    cause: str


class TroubleLog:
    """The troubles of all members of one client: a hundred members behind one broken address log one line."""

    def __init__(self) -> None:
        self._troubles: dict[Member[Any], _Trouble] = {}
        self._logged_at_ms: dict[str, int] = {}
        """The time of the last line for each current cause."""

    def publish(self, member: Member[Any], cause: str, since_ms: int) -> None:
        """Log that a member has had this trouble since then."""
        self._troubles[member] = _Trouble(since_ms, cause)
        self.repeat(member, cause)

    def repeat(self, member: Member[Any], cause: str) -> None:
        """Log once a minute that a member still has trouble."""
        trouble, now_ms = self._troubles.get(member), member._now_ms()
        if trouble is None:
            return
        trouble.cause = cause
        if cause in self._logged_at_ms and now_ms - self._logged_at_ms[cause] < WARN_AGAIN_MS:
            return
        self._logged_at_ms[cause] = now_ms
        waited_s = (now_ms - trouble.since_ms) / 1000
        _log.warning("group %s: not served for %.0f s, retrying: %s", member.group_id, waited_s, cause)

    def over(self, member: Member[Any], *, was_closed: bool = False) -> None:
        """Note that a member is served again, or was closed. Logged for the last member with that cause."""
        trouble = self._troubles.pop(member, None)
        if trouble is None or any(other.cause == trouble.cause for other in self._troubles.values()):
            return
        causes = {other.cause for other in self._troubles.values()}
        self._logged_at_ms = {cause: at_ms for cause, at_ms in self._logged_at_ms.items() if cause in causes}
        outcome = "closed while it was not served for" if was_closed else "served again after"
        _log.info("group %s: %s %.0f s", member.group_id, outcome, (member._now_ms() - trouble.since_ms) / 1000)


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
