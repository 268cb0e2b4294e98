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

What a member knows of itself is `standing.py`, with the ways out of a generation; `Plan` reads it to say what to
send; `answers.py` is what each answer does to it. Here is what the shell sees and decides.
"""

from __future__ import annotations

from collections.abc import Mapping

from rota.core.membership.answers import Moment, enter_offered, mismatch, take_answer, take_silence
from rota.core.membership.events import FINAL, IN_GENERATION, JOINS, UNAVAILABLE, Event, State
from rota.core.membership.reachability import Reachability
from rota.core.membership.requests import MembershipRequest, Planned, RequestFactory
from rota.core.membership.settings import MembershipSettings
from rota.core.membership.standing import Standing
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    CommitOffsets,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    LeaveGroup,
    Protocol,
    Reply,
    SyncGroup,
    parks_for_ms,
)

# --- the next request -----------------------------------------------------------------------------


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


# --- the machine ----------------------------------------------------------------------------------


_RENEWING = (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
"""Answers to a heartbeat that say that it has renewed the session."""


class Membership:
    """One member's side of the protocol. Times are milliseconds of the caller's monotonic clock."""

    def __init__(self, settings: MembershipSettings) -> None:
        self.settings = settings
        self._standing = Standing(settings)
        self._plan = Plan(self._standing)
        self._reachability = Reachability(settings.notice_ms)

    # --- where it stands ----------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._standing.state

    @property
    def is_final(self) -> bool:
        return self._standing.state in FINAL

    @property
    def member_id(self) -> str:
        return self._standing.member_id

    @property
    def generation_id(self) -> int:
        return self._standing.generation_id

    @property
    def fencing_token(self) -> int:
        """A number that no other holder of the same share has, higher than those of earlier holders."""
        return self._standing.fencing_token

    @property
    def protocol_name(self) -> str:
        return self._standing.protocol_name

    @property
    def leader_id(self) -> str:
        return self._standing.leader_id

    @property
    def is_leader(self) -> bool:
        return self._standing.is_leader

    @property
    def assignment(self) -> bytes | None:
        """The assignment that is held, or None. Empty bytes are an empty assignment."""
        return self._standing.assignment

    @property
    def unreachable_since_ms(self) -> int | None:
        """Since when no coordinator answers, once that has lasted a second; None before, and while one answers."""
        return self._reachability.unreachable_since_ms

    @property
    def trouble(self) -> str:
        """Why calls are not served now, once that has lasted a second; empty while they are."""
        return self._reachability.cause

    @property
    def is_away(self) -> bool:
        """Whether this member stepped aside, or is about to."""
        return self._standing.comes_back

    @property
    def deadline_ms(self) -> int | None:
        """When the share that is held is lost unless renewed; None while no share is held."""
        return self._standing.valid_until_ms

    @property
    def alarm_ms(self) -> int | None:
        """When to call `on_time`, if no answer comes before: at the deadline, or when trouble is to be published."""
        alarms = [at_ms for at_ms in (self.deadline_ms, self._reachability.notice_at_ms) if at_ms is not None]
        return min(alarms, default=None)

    @property
    def revoke_by_ms(self) -> int | None:
        """When the assignment is lost unless this member has joined again, even if its heartbeats go on."""
        return None if self.assignment is None else self._standing.deadline.rejoin_by_ms

    def holds(self, now_ms: int) -> bool:
        """Whether this member may act now. Right also where `on_time` has not been called yet, as on a blocked loop."""
        return self.assignment is not None and self._standing.deadline.holds(now_ms)

    def holds_with(self, now_ms: int, request: Heartbeat, reply: HeartbeatReply, sent_at_ms: int) -> bool:
        """As `holds`, if this heartbeat that another thread sent were known already. Changes nothing."""
        standing = self._standing
        if standing.assignment is None or not standing.awaits(request) or reply.error not in _RENEWING:
            return self.holds(now_ms)
        return standing.deadline.with_renewal(sent_at_ms, settled=standing.shows_settled(reply)).holds(now_ms)

    # --- what to send -------------------------------------------------------------------------

    def next_request(self, now_ms: int) -> Planned | None:
        """The next call and when; None while away, and once the state is final. Asking changes nothing."""
        return self._plan.next_request(now_ms)

    def wants(self, request: MembershipRequest, now_ms: int) -> bool:
        """Whether a call under way is still the one to wait for; if not, the shell cancels it and asks again."""
        planned = self.next_request(now_ms)
        return planned is not None and type(planned.request) is type(request) and self._standing.awaits(request)

    def overdue_heartbeat(self, now_ms: int) -> Heartbeat | None:
        """For a heartbeat thread beside the shell: the request to send after half a session without a renewal."""
        return self._plan.overdue_heartbeat(now_ms)

    # --- what the shell decides ---------------------------------------------------------------

    def assign(self, generation_id: int, assignments: Mapping[str, bytes]) -> None:
        """The leader's answer to `JoinedAsLeader`. Ignored where that generation is over."""
        standing = self._standing
        if standing.state is State.LEADING and generation_id == standing.generation_id:
            standing.assignments = tuple(assignments.items())
            standing.state = State.SYNCING

    def assignment_failed(self, generation_id: int, detail: str) -> None:
        """The leader could not assign: it says so to all. Ignored where that generation is over."""
        standing = self._standing
        if standing.state is State.LEADING and generation_id == standing.generation_id:
            standing.leader_error = detail
            standing.state = State.SYNCING

    def resync(self, assignments: Mapping[str, bytes]) -> bool:
        """The leader of a Stable group changes the assignment without a join phase; False where it cannot."""
        standing = self._standing
        if standing.state is not State.STABLE or not standing.is_leader:
            return False
        standing.assignments = tuple(assignments.items())
        standing.state = State.SYNCING
        return True

    def request_rejoin(self, now_ms: int, reason: str, protocols: tuple[Protocol, ...] | None = None) -> list[Event]:
        """Join again, with new metadata where given. The assignment is revoked first, as in any rebalance."""
        standing = self._standing
        if standing.state is State.LEAVING or self.is_final:
            return []
        standing.protocols = protocols or standing.protocols
        standing.reason = reason
        if standing.state in JOINS or standing.owes_assignment:
            # A join in flight may complete with its old metadata: then there will be one more. So there is after the
            # generation that this member leads: the others wait for its assignment, and its last commits do, too.
            standing.metadata_is_stale = True
            return []
        if standing.state in (State.REVOKING, State.AWAY):
            return []
        return standing.leave_generation(now_ms, reason)

    def rejoin(
        self, now_ms: int, protocols: tuple[Protocol, ...] | None = None, *, holding: bool = False
    ) -> list[Event]:
        """The shell's answer to `RebalanceStarted`, with this member's new metadata, if it has changed.

        Work has stopped, and nothing is held any more; or, with `holding`, the assignment is kept while joining,
        which is safe only where the metadata in `protocols` names all of it. Such a member does not join where an
        election has taken it along: it is in the next generation when this returns.
        """
        standing = self._standing
        if standing.state is not State.REVOKING:
            return []
        standing.protocols = protocols or standing.protocols
        if not holding:
            standing.forget_generation(now_ms)
            return []
        standing.back_to_joining(now_ms)
        return enter_offered(standing, now_ms) + self.on_time(now_ms)

    def lose(self, now_ms: int, reason: str, code: ErrorCode) -> list[Event]:
        """Give up what is held at once, for an answer outside of the membership's own calls, and join again."""
        if self._standing.state is State.LEAVING or self.is_final:
            return []
        return self._standing.lose(reason, code, now_ms)

    def hold_off(self, is_held_off: bool) -> None:
        """Join no generation while the program still ends its work on a share that is lost: as one that has joined,
        this member would let the others have it before its session is over. A join that is under way already goes on
        to claim what it claimed.
        """
        self._standing.is_held_off = is_held_off

    def say(self, protocols: tuple[Protocol, ...]) -> None:
        """Set the metadata for this member's next join. A join in flight is not changed."""
        self._standing.protocols = protocols

    def leave(self, now_ms: int, reason: str, failed_unit: str = "") -> list[Event]:
        """Give everything up and leave. The shell has stopped its work before; `failed_unit`: because that failed."""
        standing = self._standing
        standing.comes_back = standing.joins_after_leaving = False
        if self.is_final or standing.state is State.LEAVING:
            return []
        standing.assignment = None
        if not standing.member_id:
            return standing.depart()
        standing.state = State.LEAVING
        standing.leave_began_ms = now_ms
        standing.reason = reason
        standing.failed_unit = failed_unit
        standing.pace.reset()  # Closing waits for this: a long outage before must not make it slow.
        standing.pace.at_once(now_ms)
        return []

    def step_aside(self, now_ms: int, reason: str, failed_unit: str = "", *, silently: bool = False) -> list[Event]:
        """Leave as in `leave`, but only until `come_back`; `silently`: without a LeaveGroup, as static members go.

        A member that leaves for good is not held up by it.
        """
        standing = self._standing
        if standing.leaves_for_good:
            return []
        events = self.leave(now_ms, reason, failed_unit) if standing.member_id and not silently else []
        if not self.is_final:
            standing.comes_back = True
            standing.assignment = None
            if silently or standing.state is not State.LEAVING:
                standing.go_away(now_ms)
        return events

    def come_back(self, now_ms: int) -> None:
        """Join again after `step_aside`, as a new member; after the leave, where that is still in flight."""
        standing = self._standing
        if standing.leaves_for_good:
            return
        standing.comes_back = False
        if standing.state is State.AWAY:
            standing.forget_member(now_ms)
        elif standing.state is State.LEAVING:
            standing.joins_after_leaving = True

    def abandon(self) -> list[Event]:
        """Final without a LeaveGroup: a static member that comes back within its session."""
        return self._standing.depart()

    # --- what happened ------------------------------------------------------------------------

    def sent(self, request: MembershipRequest | CommitOffsets, sent_at_ms: int) -> None:
        """A call is under way: an answer that is overdue is published before the call fails."""
        if isinstance(request, JoinGroup):
            self._standing.joined_with = request.protocols
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
        if self._standing.awaits(request):
            events += take_answer(self._standing, request, reply, Moment(sent_at_ms, now_ms, jitter))
            if retry_after_ms and not isinstance(request, CommitOffsets):
                self._standing.pace.retry_after(retry_after_ms, now_ms, self._standing.patience_ends_ms)
        return events + self.on_time(now_ms)

    def _judge(
        self, request: MembershipRequest | CommitOffsets, reply: Reply, sent_at_ms: int, now_ms: int
    ) -> list[Event]:
        """Whether this answer serves the member."""
        if reply.error in UNAVAILABLE:  # No coordinator for the group is as good as silence.
            cause = f"{reply.error}: {reply.detail}" if reply.detail else str(reply.error)
            return self._reachability.silence(request, sent_at_ms, now_ms, cause, was_sent=True)
        if reply.error in self._standing.settings.retried_codes:
            return self._reachability.rejection(reply.error, reply.detail, now_ms)
        if wrong := mismatch(self._standing, request, reply):
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
        if self._standing.awaits(request):
            events += take_silence(self._standing, request, Moment(sent_at_ms, now_ms, jitter))
        return events + self.on_time(now_ms)

    def on_heartbeat_answer(self, request: Heartbeat, reply: HeartbeatReply, sent_at_ms: int) -> None:
        """A heartbeat of the thread beside the shell was answered. Only its renewal counts here."""
        standing = self._standing
        if not standing.awaits(request):
            return
        if reply.error in _RENEWING:
            standing.on_heartbeat_answer(reply, sent_at_ms)

    def on_time(self, now_ms: int) -> list[Event]:
        """Time has passed. At the deadline a share is lost, whether or not a coordinator can be reached."""
        events = self._reachability.on_time(now_ms)
        if self.assignment is None or self._standing.deadline.holds(now_ms):
            return events
        return events + self._standing.lose("deadline", ErrorCode.NONE, now_ms)
