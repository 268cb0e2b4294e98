"""The settings of one member, and the times that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from rota.core.membership.events import LATER, REFUSALS
from rota.protocol.defaults import (
    BACKOFF_CAP_MS,
    BACKOFF_FIRST_MS,
    HEARTBEAT_BACKOFF_CAP_MS,
    HEARTBEAT_INTERVAL_MS,
    REBALANCE_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    WARN_AFTER_MS,
)
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import MAX_WAIT_MS
from rota.protocol.messages import Protocol

_MIN_SEAT_GRACE_MS = 1_000
_MIN_MARGIN_MS = 50


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """One member of one group. Times are milliseconds; `protocols` in order of preference."""

    namespace: str
    group_id: str
    protocol_type: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS
    group_instance_id: str | None = None
    client_id: str = ""
    heartbeat_ms: int | None = None
    """The heartbeat interval, where the program sets one; at most half of the session timeout."""
    retry_refusals: bool = True
    """Repeat calls that lack a valid token or a permission; otherwise such a rejection ends the membership."""
    backoff_first_ms: int = BACKOFF_FIRST_MS
    backoff_cap_ms: int = BACKOFF_CAP_MS

    def __post_init__(self) -> None:
        """`ValueError` for an interval that leaves no time for a second heartbeat within the session."""
        if self.heartbeat_ms is not None and not 0 < self.heartbeat_ms <= self.session_timeout_ms // 2:
            raise ValueError(
                f"the heartbeat interval must be 1 to {self.session_timeout_ms // 2} ms, "
                f"half of the session timeout, not {self.heartbeat_ms} ms"
            )

    @property
    def retried_codes(self) -> frozenset[ErrorCode]:
        """The codes after which a call is repeated."""
        return LATER | REFUSALS if self.retry_refusals else LATER

    @property
    def margin_ms(self) -> int:
        """How much earlier than the coordinator this member gives up: covers clocks that differ by 2 %."""
        return max(_MIN_MARGIN_MS, self.session_timeout_ms // 50)

    @property
    def poll_ms(self) -> int:
        """The longest that a call may park: the answers to two in a row may be lost, and time is left for others."""
        return min(self.session_timeout_ms // 5, self.rebalance_timeout_ms // 3, MAX_WAIT_MS)

    @property
    def heartbeat_interval_ms(self) -> int:
        """Between two heartbeats that do not park."""
        return self.heartbeat_ms or min(self.poll_ms, HEARTBEAT_INTERVAL_MS)

    @property
    def heartbeat_wait_ms(self) -> int:
        """The longest that a heartbeat may park."""
        return min(self.poll_ms, self.heartbeat_ms or self.poll_ms)

    @property
    def notice_ms(self) -> int:
        """How long calls may go without a useful answer before the program is notified."""
        return min(WARN_AFTER_MS, self.heartbeat_interval_ms)

    @property
    def heartbeat_grace_ms(self) -> int:
        """How long beyond its parked time a heartbeat may take: one lost answer leaves time for another try."""
        return min(self.session_timeout_ms // 3, REQUEST_TIMEOUT_MS)

    @property
    def seat_grace_ms(self) -> int:
        """The same for a join or sync with a member id: the session that comes with it must leave time, too."""
        return max(_MIN_SEAT_GRACE_MS, self.heartbeat_grace_ms)

    @property
    def heartbeat_backoff_cap_ms(self) -> int:
        """Back-off between heartbeats must not eat the session that they are to save."""
        return min(self.backoff_cap_ms, self.session_timeout_ms // 10, HEARTBEAT_BACKOFF_CAP_MS)

    @property
    def rejoin_backoff_cap_ms(self) -> int:
        """The same between joins of a member that has an id: its session runs at the coordinator meanwhile."""
        return min(self.backoff_cap_ms, self.session_timeout_ms // 3)
