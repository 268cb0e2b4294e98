"""What a member sends next, and when. Asking changes nothing."""

from __future__ import annotations

from rota.membership.requests import MembershipRequest, Planned, RequestFactory
from rota.membership.standing import Standing
from rota.membership.states import IN_GENERATION, State
from rota.protocol.messages import Heartbeat, LeaveGroup, SyncGroup, parks_for_ms


class Plan:
    """Reads where a member stands."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._requests = RequestFactory(standing.settings)

    def next_request(self, now_ms: int) -> Planned | None:
        """The next call and when; None while away, and once the state is final."""
        standing = self._standing
        match standing.state:
            case State.UNJOINED if standing.is_held_off:
                return None
            case State.UNJOINED | State.JOINING:
                protocols = standing.joined_with if standing.is_held_off else standing.protocols
                return self._call(
                    self._requests.join(standing.member_id, protocols, standing.reason, standing.last_generation_id),
                    now_ms,
                )
            case State.SYNCING if standing.deadline.is_fresh(now_ms, standing.settings.poll_ms):
                return self._call(self._sync(), now_ms)
            case State.SYNCING:
                # Parked syncs are not counted on to renew, so a heartbeat goes between them.
                return self._heartbeat(now_ms, now_ms, wait_ms=0)
            case State.LEADING | State.REVOKING:
                return self._heartbeat(now_ms, standing.heartbeat_at_ms, wait_ms=0)
            case State.STABLE:
                return self._heartbeat(now_ms, standing.heartbeat_at_ms, self._heartbeat_wait_ms(now_ms))
            case State.LEAVING:
                return self._call(
                    self._requests.leave(standing.member_id, standing.reason, standing.failed_unit), now_ms
                )
            case State.AWAY | State.LEFT | State.FENCED | State.FAILED:
                return None

    def overdue_heartbeat(self, now_ms: int) -> Heartbeat | None:
        """The heartbeat that another thread may send for this member, when half a session has passed unrenewed.

        Also while the member leads and still assigns: a blocking `assign` must not cost it the group.
        """
        standing = self._standing
        half_ms = standing.settings.session_timeout_ms // 2
        is_in_generation = standing.state in IN_GENERATION or standing.assignment is not None
        if not is_in_generation or standing.deadline.is_fresh(now_ms, half_ms):
            return None
        return self._requests.heartbeat(standing.member_id, standing.generation_id, wait_ms=0)

    def _call(self, request: MembershipRequest, now_ms: int) -> Planned:
        send_at_ms = max(now_ms, self._standing.pace.not_before_ms)
        return Planned(request, send_at_ms, parks_for_ms(request) + self._grace_ms(request))

    def _grace_ms(self, request: MembershipRequest) -> int:
        standing, settings = self._standing, self._standing.settings
        if standing.assignment is not None:
            return settings.heartbeat_grace_ms  # The assignment depends on this call's answer, as on a heartbeat's.
        if standing.member_id and not isinstance(request, LeaveGroup):
            return settings.seat_grace_ms
        return settings.answer_grace_ms

    def _heartbeat(self, now_ms: int, due_ms: int, wait_ms: int) -> Planned:
        standing = self._standing
        request = self._requests.heartbeat(standing.member_id, standing.generation_id, wait_ms)
        send_at_ms = max(now_ms, due_ms, standing.pace.not_before_ms)
        return Planned(request, send_at_ms, wait_ms + standing.settings.heartbeat_grace_ms)

    def _heartbeat_wait_ms(self, now_ms: int) -> int:
        """How long to park: never more than a third of the time left, and not at all after a failure.

        An answer that comes at once is what moves the deadline; a parked one only when it returns.
        """
        settings, valid_until_ms = self._standing.settings, self._standing.deadline.valid_until_ms
        if not settings.long_poll or self._standing.pace.failures or valid_until_ms is None:
            return 0
        return max(0, min(settings.heartbeat_wait_ms, (valid_until_ms - now_ms) // 3))

    def _sync(self) -> SyncGroup:
        standing = self._standing
        return self._requests.sync(
            standing.member_id,
            standing.generation_id,
            standing.protocol_name,
            standing.assignments,
            standing.leader_error,
        )
