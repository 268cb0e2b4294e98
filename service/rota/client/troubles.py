"""Log lines while members are not served: the cause once, then once a minute, then its end."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
