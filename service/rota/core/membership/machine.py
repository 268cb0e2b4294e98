"""The client state machine: what a member sends next and by when, and what each answer means for it.

Theory of operation. At most one membership call is under way at a time. The shell asks `next_request`, sends it when
it is due, and hands the outcome to `on_reply` or `on_failure`; `on_time` is called when `deadline_ms` has come. Each of
them returns events for the shell. A reply that belongs to an earlier generation or member id is recognised and ignored.

    UNJOINED ──▶ JOINING ──▶ LEADING ──assign()──▶ SYNCING ──▶ STABLE ──rebalance──▶ REVOKING ──rejoin()──▶ UNJOINED
                    └──────── follower ───────────────▶┘ ▲        │
                                                         └─resync─┘
    any ──leave()──▶ LEAVING ──▶ LEFT        any ──fenced──▶ FENCED        any ──refused for good──▶ FAILED
    any ──step_aside()──▶ LEAVING ──▶ AWAY ──come_back()──▶ UNJOINED

An assignment is held in STABLE and REVOKING, and in SYNCING during a resync. A cooperative member (KIP-429) answers
REVOKING with `rejoin(holding=True)` and holds on in UNJOINED, JOINING, LEADING and SYNCING, too: its metadata says what
it holds, and no leader gives that to another member. Where an election took it along, `rejoin` leads to the next
generation without a join (ADR 95). An assignment is never handed out, and never kept, past the local
deadline (`deadline.py`): where a join may not have renewed the session, a heartbeat goes first.

`standing.py` is what a member knows of itself, with the ways out of a generation; `answers.py` is what each answer does
to it. Here is what the shell sees, sends and decides.
"""

from __future__ import annotations

from collections.abc import Mapping

from rota.core.membership.answers import Moment, enter_offered, mismatch, take_answer, take_silence
from rota.core.membership.events import FINAL, JOINS, UNAVAILABLE, Event, MembershipRequest, Planned, State
from rota.core.membership.reachability import Reachability
from rota.core.membership.settings import MembershipSettings
from rota.core.membership.standing import Standing
from rota.protocol.defaults import REQUEST_TIMEOUT_MS
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    CommitOffsets,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Protocol,
    Reply,
    SyncGroup,
    parks_for_ms,
)
from rota.protocol.texts import ERROR_MAX_CHARS, shortened

_RENEWING = (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
"""Answers to a heartbeat that say that it has renewed the session."""


class Membership(Standing):
    """One member's side of the protocol. Times are milliseconds of the caller's monotonic clock."""

    def __init__(self, settings: MembershipSettings) -> None:
        super().__init__(settings)
        self._reachability = Reachability(settings.notice_ms)

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def unreachable_since_ms(self) -> int | None:
        """Since when no coordinator answers, once that has lasted a second; None before, and while one answers."""
        return self._reachability.unreachable_since_ms

    @property
    def trouble(self) -> str:
        """Why calls are not served now, once that has lasted a second; empty while they are."""
        return self._reachability.cause

    @property
    def alarm_ms(self) -> int | None:
        """When to call `on_time`, if no answer comes before: at the deadline, or when trouble is to be published."""
        alarms = [at_ms for at_ms in (self.deadline_ms, self._reachability.notice_at_ms) if at_ms is not None]
        return min(alarms, default=None)

    @property
    def revoke_by_ms(self) -> int | None:
        """When the assignment is lost unless this member has joined again, even if its heartbeats go on."""
        return None if self.assignment is None else self.deadline.rejoin_by_ms

    def holds(self, now_ms: int) -> bool:
        """Whether this member may act now. Right also where `on_time` has not been called yet, as on a blocked loop."""
        return self.assignment is not None and self.deadline.holds(now_ms)

    def holds_with(self, now_ms: int, request: Heartbeat, reply: HeartbeatReply, sent_at_ms: int) -> bool:
        """As `holds`, if this heartbeat that another thread sent were known already. Changes nothing."""
        if self.assignment is None or not self.awaits(request) or reply.error not in _RENEWING:
            return self.holds(now_ms)
        return self.deadline.with_renewal(sent_at_ms, settled=self.shows_settled(reply)).holds(now_ms)

    # --- what to send -------------------------------------------------------------------------

    def next_request(self, now_ms: int) -> Planned | None:
        """The next call and when; None while away, and once the state is final. Asking changes nothing."""
        settings, names = self.settings, (self.settings.namespace, self.settings.group_id)
        match self.state:
            case State.UNJOINED if self.is_held_off:
                return None
            case State.UNJOINED | State.JOINING:
                join = JoinGroup(
                    *names,
                    protocol_type=settings.protocol_type,
                    protocols=self.joined_with if self.is_held_off else self.protocols,
                    session_timeout_ms=settings.session_timeout_ms,
                    rebalance_timeout_ms=settings.rebalance_timeout_ms,
                    member_id=self.member_id,
                    group_instance_id=settings.group_instance_id,
                    client_id=settings.client_id,
                    reason=shortened(self.reason),
                    wait_ms=settings.poll_ms,
                    last_generation_id=self.last_generation_id,
                )
                return self._call(join, now_ms)
            case State.SYNCING if self.deadline.is_fresh(now_ms, settings.poll_ms):
                sync = SyncGroup(
                    *names,
                    member_id=self.member_id,
                    generation_id=self.generation_id,
                    group_instance_id=settings.group_instance_id,
                    protocol_type=settings.protocol_type,
                    protocol_name=self.protocol_name or None,
                    assignments=self.assignments,
                    leader_error=None if self.leader_error is None else shortened(self.leader_error, ERROR_MAX_CHARS),
                    wait_ms=settings.poll_ms,
                )
                return self._call(sync, now_ms)
            case State.SYNCING:
                # Parked syncs are not counted on to renew, so a heartbeat goes between them.
                return self._planned_heartbeat(now_ms, now_ms, wait_ms=0)
            case State.LEADING | State.REVOKING:
                return self._planned_heartbeat(now_ms, self.heartbeat_at_ms, wait_ms=0)
            case State.STABLE:
                return self._planned_heartbeat(now_ms, self.heartbeat_at_ms, self._heartbeat_wait_ms(now_ms))
            case State.LEAVING:
                leaving = LeavingMember(
                    self.member_id, settings.group_instance_id, shortened(self.reason), failed_unit=self.failed_unit
                )
                return self._call(LeaveGroup(*names, (leaving,)), now_ms)
            case State.AWAY | State.LEFT | State.FENCED | State.FAILED:
                return None

    def wants(self, request: MembershipRequest, now_ms: int) -> bool:
        """Whether a call under way is still the one to wait for; if not, the shell cancels it and asks again."""
        planned = self.next_request(now_ms)
        return planned is not None and type(planned.request) is type(request) and self.awaits(request)

    def overdue_heartbeat(self, now_ms: int) -> Heartbeat | None:
        """The heartbeat that another thread may send for this member, when half a session has passed unrenewed.

        Also while the member leads and still assigns: a blocking `assign` must not cost it the group.
        """
        is_fresh = self.deadline.is_fresh(now_ms, self.settings.session_timeout_ms // 2)
        return self._heartbeat(wait_ms=0) if self.is_in_generation and not is_fresh else None

    def _call(self, request: MembershipRequest, now_ms: int) -> Planned:
        if self.assignment is not None:
            grace_ms = self.settings.heartbeat_grace_ms  # The assignment depends on the answer, as on a heartbeat's.
        elif self.member_id and not isinstance(request, LeaveGroup):
            grace_ms = self.settings.seat_grace_ms
        else:
            grace_ms = REQUEST_TIMEOUT_MS
        return Planned(request, max(now_ms, self.pace.not_before_ms), parks_for_ms(request) + grace_ms)

    def _planned_heartbeat(self, now_ms: int, due_ms: int, wait_ms: int) -> Planned:
        send_at_ms = max(now_ms, due_ms, self.pace.not_before_ms)
        return Planned(self._heartbeat(wait_ms), send_at_ms, wait_ms + self.settings.heartbeat_grace_ms)

    def _heartbeat(self, wait_ms: int) -> Heartbeat:
        settings = self.settings
        return Heartbeat(
            settings.namespace,
            settings.group_id,
            member_id=self.member_id,
            generation_id=self.generation_id,
            group_instance_id=settings.group_instance_id,
            wait_ms=wait_ms,
        )

    def _heartbeat_wait_ms(self, now_ms: int) -> int:
        """How long to park: never more than a third of the time left, and not at all after a failure.

        An answer that comes at once is what moves the deadline; a parked one only when it returns.
        """
        valid_until_ms = self.deadline.valid_until_ms
        if self.pace.failures or valid_until_ms is None:
            return 0
        return max(0, min(self.settings.heartbeat_wait_ms, (valid_until_ms - now_ms) // 3))

    # --- what the shell decides ---------------------------------------------------------------

    def assign(self, generation_id: int, assignments: Mapping[str, bytes]) -> None:
        """The leader's answer to `JoinedAsLeader`. Ignored if that generation is over."""
        if self.state is State.LEADING and generation_id == self.generation_id:
            self.assignments = tuple(assignments.items())
            self.state = State.SYNCING

    def assignment_failed(self, generation_id: int, detail: str) -> None:
        """The leader could not assign: it says so to all. Ignored if that generation is over."""
        if self.state is State.LEADING and generation_id == self.generation_id:
            self.leader_error = detail
            self.state = State.SYNCING

    def resync(self, assignments: Mapping[str, bytes]) -> bool:
        """The leader of a Stable group changes the assignment without a join phase; False if it cannot."""
        if self.state is not State.STABLE or not self.is_leader:
            return False
        self.assignments = tuple(assignments.items())
        self.state = State.SYNCING
        return True

    def request_rejoin(self, now_ms: int, reason: str, protocols: tuple[Protocol, ...] | None = None) -> list[Event]:
        """Join again, with new metadata where given. The assignment is revoked first, as in any rebalance."""
        if self.state is State.LEAVING or self.is_final:
            return []
        self.protocols = protocols or self.protocols
        self.reason = reason
        if self.state in JOINS or self.owes_assignment:
            # A join in flight may complete with its old metadata: then there will be one more. So there is after the
            # generation that this member leads: the others wait for its assignment, and its last commits do, too.
            self.metadata_is_stale = True
            return []
        if self.state in (State.REVOKING, State.AWAY):
            return []
        return self.leave_generation(now_ms, reason)

    def rejoin(
        self, now_ms: int, protocols: tuple[Protocol, ...] | None = None, *, holding: bool = False
    ) -> list[Event]:
        """The shell's answer to `RebalanceStarted`, with this member's new metadata, if it has changed.

        Work has stopped, and nothing is held any more; or, with `holding`, the assignment is kept while joining,
        which is safe only where the metadata in `protocols` names all of it. Such a member does not join where an
        election has taken it along: it is in the next generation when this returns.
        """
        if self.state is not State.REVOKING:
            return []
        self.protocols = protocols or self.protocols
        if not holding:
            self.forget_generation(now_ms)
            return []
        self.back_to_joining(now_ms)
        return enter_offered(self, now_ms) + self.on_time(now_ms)

    def lose(self, now_ms: int, reason: str, code: ErrorCode) -> list[Event]:
        """Give up what is held at once, for an answer outside of the membership's own calls, and join again."""
        if self.state is State.LEAVING or self.is_final:
            return []
        return self.lose_share(reason, code, now_ms)

    def hold_off(self, is_held_off: bool) -> None:
        """Join no generation while the program still ends its work on a share that is lost: once it has joined, the
        others would get that share before its session is over. A join that is under way already goes on
        to claim what it claimed.
        """
        self.is_held_off = is_held_off

    def say(self, protocols: tuple[Protocol, ...]) -> None:
        """Set the metadata for this member's next join. A join in flight is not changed."""
        self.protocols = protocols

    def leave(self, now_ms: int, reason: str, failed_unit: str = "") -> list[Event]:
        """Give everything up and leave. The shell has stopped its work before; `failed_unit`: because that failed."""
        self.is_away = self.joins_after_leaving = False
        if self.is_final or self.state is State.LEAVING:
            return []
        self.assignment = None
        if not self.member_id:
            return self.depart()
        self.state = State.LEAVING
        self.leave_began_ms = now_ms
        self.reason = reason
        self.failed_unit = failed_unit
        self.pace.reset()  # Closing waits for this: a long outage before must not make it slow.
        self.pace.at_once(now_ms)
        return []

    def step_aside(self, now_ms: int, reason: str, failed_unit: str = "", *, silently: bool = False) -> list[Event]:
        """Leave as in `leave`, but only until `come_back`; `silently`: without a LeaveGroup, as static members go.

        A member that leaves for good is not held up by it.
        """
        if self.leaves_for_good:
            return []
        events = self.leave(now_ms, reason, failed_unit) if self.member_id and not silently else []
        if not self.is_final:
            self.is_away = True
            self.assignment = None
            if silently or self.state is not State.LEAVING:
                self.go_away(now_ms)
        return events

    def come_back(self, now_ms: int) -> None:
        """Join again after `step_aside`, as a new member; after the leave, where that is still in flight."""
        if self.leaves_for_good:
            return
        self.is_away = False
        if self.state is State.AWAY:
            self.forget_member(now_ms)
        elif self.state is State.LEAVING:
            self.joins_after_leaving = True

    def abandon(self) -> list[Event]:
        """Final without a LeaveGroup: a static member that comes back within its session."""
        return self.depart()

    # --- what happened ------------------------------------------------------------------------

    def sent(self, request: MembershipRequest | CommitOffsets, sent_at_ms: int) -> None:
        """A call is under way: an answer that is overdue is published before the call fails."""
        if isinstance(request, JoinGroup):
            self.joined_with = request.protocols
        self._reachability.sent(request, sent_at_ms)

    def ended(self, request: MembershipRequest | CommitOffsets) -> None:
        """The call is not under way any more: before its outcome is reported, if it has one."""
        self._reachability.ended(request)

    def on_reply(
        self,
        request: MembershipRequest | CommitOffsets,
        reply: Reply,
        sent_at_ms: int,
        now_ms: int,
        jitter: float,
        retry_after_ms: int = 0,
    ) -> list[Event]:
        """An answer came. `jitter` is a random number from 0 to 1, for the back-off if one follows.

        Answers to commits are reported here, too: they renew the session, or show that it is over.
        A coordinator that asks for patience (`retry_after_ms`) is not called before.
        """
        events = self._judge(request, reply, sent_at_ms, now_ms)
        if self.awaits(request):
            events += take_answer(self, request, reply, Moment(sent_at_ms, now_ms, jitter))
            if retry_after_ms and not isinstance(request, CommitOffsets):
                self.pace.retry_after(retry_after_ms, now_ms, self.patience_ends_ms)
        return events + self.on_time(now_ms)

    def _judge(
        self, request: MembershipRequest | CommitOffsets, reply: Reply, sent_at_ms: int, now_ms: int
    ) -> list[Event]:
        """Whether this answer serves the member."""
        if reply.error in UNAVAILABLE:  # No coordinator for the group is as good as silence.
            cause = f"{reply.error}: {reply.detail}" if reply.detail else str(reply.error)
            return self._reachability.silence(request, sent_at_ms, now_ms, cause, was_sent=True)
        if reply.error in self.settings.retried_codes:
            return self._reachability.rejection(reply.error, reply.detail, now_ms)
        if wrong := mismatch(self, request, reply):
            return self._reachability.silence(request, sent_at_ms, now_ms, wrong, was_sent=True)
        return self._reachability.answer()

    def on_failure(
        self,
        request: MembershipRequest | CommitOffsets,
        sent_at_ms: int,
        now_ms: int,
        jitter: float,
        cause: str = "",
        *,
        was_sent: bool = True,
    ) -> list[Event]:
        """No answer came, so the outcome of the call is unknown. It is repeated after a pause."""
        events = self._reachability.silence(request, sent_at_ms, now_ms, cause, was_sent=was_sent)
        if self.awaits(request):
            events += take_silence(self, request, Moment(sent_at_ms, now_ms, jitter))
        return events + self.on_time(now_ms)

    def on_heartbeat_answer(self, request: Heartbeat, reply: HeartbeatReply, sent_at_ms: int) -> None:
        """A heartbeat of the thread beside the shell was answered. Only its renewal counts here."""
        if not self.awaits(request):
            return
        if reply.error in _RENEWING:
            self.renewed_by(reply, sent_at_ms)

    def on_time(self, now_ms: int) -> list[Event]:
        """Time has passed. At the deadline a share is lost, whether or not a coordinator can be reached."""
        events = self._reachability.on_time(now_ms)
        if self.assignment is None or self.deadline.holds(now_ms):
            return events
        return events + self.lose_share("deadline", ErrorCode.NONE, now_ms)
