"""What a program's log says while members are not served: the cause once, then once a minute, then that it is over."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from rota.protocol.defaults import WARN_AGAIN_MS

_REPEAT_S = WARN_AGAIN_MS / 1000
_log = logging.getLogger("rota.client")


@dataclass(slots=True)
class _Trouble:
    since_s: float
    cause: str


class TroubleLog:
    """Of all members of one client: a hundred of them behind one broken address are one line, not a hundred."""

    def __init__(self) -> None:
        self._troubles: dict[object, _Trouble] = {}
        self._logged_at_s: dict[str, float] = {}
        """By cause, for each cause that a member has now."""

    def publish(self, member: object, subject: str, cause: str, *, since_s: float, now_s: float) -> None:
        """A member has trouble. `since_s` and `now_s` are of the same clock."""
        self._troubles[member] = _Trouble(since_s, cause)
        self.repeat(member, subject, cause, now_s=now_s)

    def repeat(self, member: object, subject: str, cause: str, *, now_s: float) -> None:
        """A member still has trouble, if it had: logged once a minute."""
        trouble = self._troubles.get(member)
        if trouble is None:
            return
        trouble.cause = cause
        if now_s - self._logged_at_s.get(cause, float("-inf")) < _REPEAT_S:
            return
        self._logged_at_s[cause] = now_s
        _log.warning("%s: not served for %.0f s, retrying: %s", subject, now_s - trouble.since_s, cause)

    def over(self, member: object, subject: str, *, now_s: float, was_closed: bool = False) -> None:
        """A member is served again, or was closed. Logged where it was the last one with that cause."""
        trouble = self._troubles.pop(member, None)
        if trouble is None or any(other.cause == trouble.cause for other in self._troubles.values()):
            return
        causes = {other.cause for other in self._troubles.values()}
        self._logged_at_s = {cause: at for cause, at in self._logged_at_s.items() if cause in causes}
        outcome = "closed while it was not served for" if was_closed else "served again after"
        _log.info("%s: %s %.0f s", subject, outcome, now_s - trouble.since_s)
