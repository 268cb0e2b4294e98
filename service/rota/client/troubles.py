"""What a program's log says while members are not served: the cause once, then once a minute, then that it is over."""

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
    """Of all members of one client: a hundred of them behind one broken address are one line, not a hundred."""

    def __init__(self) -> None:
        self._troubles: dict[Member[Any], _Trouble] = {}
        self._logged_at_ms: dict[str, int] = {}
        """By cause, for each cause that a member has now."""

    def publish(self, member: Member[Any], cause: str, since_ms: int) -> None:
        """A member has trouble since then."""
        self._troubles[member] = _Trouble(since_ms, cause)
        self.repeat(member, cause)

    def repeat(self, member: Member[Any], cause: str) -> None:
        """A member still has trouble, if it had: logged once a minute."""
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
        """A member is served again, or was closed. Logged where it was the last one with that cause."""
        trouble = self._troubles.pop(member, None)
        if trouble is None or any(other.cause == trouble.cause for other in self._troubles.values()):
            return
        causes = {other.cause for other in self._troubles.values()}
        self._logged_at_ms = {cause: at_ms for cause, at_ms in self._logged_at_ms.items() if cause in causes}
        outcome = "closed while it was not served for" if was_closed else "served again after"
        _log.info("group %s: %s %.0f s", member.group_id, outcome, (member._now_ms() - trouble.since_ms) / 1000)
