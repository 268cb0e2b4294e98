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
it holds, and no leader gives that to anybody else. An assignment is never handed out, and never kept, past the local
deadline (`deadline.py`): where a join may not have renewed the session, a heartbeat goes first.
"""

from __future__ import annotations

from collections.abc import Mapping

from rota.membership.deadline import LocalDeadline
from rota.membership.events import (
    Assigned,
    AssignmentFailed,
    Event,
    Failed,
    JoinedAsLeader,
    Left,
    Lost,
    RebalanceStarted,
)
from rota.membership.join_phase import JoinPhase
from rota.membership.pace import Pace
from rota.membership.reachability import Reachability
from rota.membership.requests import MembershipRequest, Planned, RequestFactory
from rota.membership.settings import MembershipSettings
from rota.membership.states import FINAL, IN_GENERATION, JOINS, LATER, STRAY_FOR_JOIN, UNKNOWN, State
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    NO_GENERATION,
    CommitOffsets,
    CommitReply,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    Protocol,
    Reply,
    SyncGroup,
    SyncReply,
)

_LEAVE_TRIES = 3


class Membership:
    """One member's side of the protocol. Times are milliseconds of the caller's monotonic clock."""

    def __init__(self, settings: MembershipSettings) -> None:
        self.settings = settings
        self.state = State.UNJOINED
        self.member_id = ""
        self.generation_id = NO_GENERATION
        self.protocol_name = ""
        self.leader_id = ""
        self.assignment: bytes | None = None
        """What is held; None where nothing is. Empty bytes are an assignment of nothing."""
        self._requests = RequestFactory(settings)
        self._protocols = settings.protocols
        self._pace = Pace(settings)
        self._reachability = Reachability()
        self._deadline = LocalDeadline(settings)
        self._heartbeat_at_ms = 0
        self._phase = JoinPhase(is_static=settings.group_instance_id is not None)
        self._metadata_is_stale = False
        self._comes_back = False
        self._joins_after_leaving = False
        self._has_synced = False
        self._assignments: tuple[tuple[str, bytes], ...] = ()
        self._leader_error: str | None = None
        self._reason = ""
        self._leave_tries = 0

    # --- where it stands ----------------------------------------------------------------------

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def unreachable_since_ms(self) -> int | None:
        """Since when nobody answers; None while somebody does."""
        return self._reachability.unreachable_since_ms

    @property
    def is_away(self) -> bool:
        """Whether this member stepped aside, or is about to."""
        return self._comes_back

    @property
    def is_leader(self) -> bool:
        return self.member_id != "" and self.leader_id == self.member_id

    @property
    def deadline_ms(self) -> int | None:
        """When what is held is lost unless renewed; None while nothing is held. Call `on_time` then."""
        return None if self.assignment is None else self._deadline.valid_until_ms

    @property
    def revoke_by_ms(self) -> int | None:
        """When what is held is lost unless this member has joined again, however alive it is."""
        return None if self.assignment is None else self._deadline.rejoin_by_ms

    def holds(self, now_ms: int) -> bool:
        """Whether this member may act now. Right also where `on_time` has not been called yet, as on a blocked loop."""
        return self.assignment is not None and self._deadline.holds(now_ms)

    # --- what to send -------------------------------------------------------------------------

    def next_request(self, now_ms: int) -> Planned | None:
        """The next call and when; None while away, and once the state is final. Asking changes nothing."""
        match self.state:
            case State.UNJOINED | State.JOINING:
                return self._plan(self._requests.join(self.member_id, self._protocols, self._reason), now_ms)
            case State.SYNCING if self._deadline.is_fresh(now_ms, self.settings.poll_ms):
                return self._plan(self._sync_request(), now_ms)
            case State.SYNCING:
                # Parked syncs are not counted on to renew, so a heartbeat goes between them.
                return self._plan_heartbeat(now_ms, now_ms, wait_ms=0)
            case State.LEADING | State.REVOKING:
                return self._plan_heartbeat(now_ms, self._heartbeat_at_ms, wait_ms=0)
            case State.STABLE:
                return self._plan_heartbeat(now_ms, self._heartbeat_at_ms, self._heartbeat_wait_ms(now_ms))
            case State.LEAVING:
                return self._plan(self._requests.leave(self.member_id, self._reason), now_ms)
            case State.AWAY | State.LEFT | State.FENCED | State.FAILED:
                return None

    def overdue_heartbeat(self, now_ms: int) -> Heartbeat | None:
        """For who keeps a member alive beside its shell: what to send, when half a session has passed unrenewed."""
        if self.assignment is None or self._deadline.is_fresh(now_ms, self.settings.session_timeout_ms // 2):
            return None
        return self._requests.heartbeat(self.member_id, self.generation_id, wait_ms=0)

    def heard(self, request: Heartbeat, reply: HeartbeatReply, sent_at_ms: int) -> None:
        """A heartbeat that somebody sent beside the shell was answered. Only that it renewed counts here."""
        if not self._awaits(request):
            return
        if reply.error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._deadline.renewed(sent_at_ms)
        if reply.error is ErrorCode.NONE and self._has_synced:
            self._deadline.settled(sent_at_ms)

    def wants(self, request: MembershipRequest, now_ms: int) -> bool:
        """Whether a call under way is still the one to wait for; if not, the shell cancels it and asks again."""
        planned = self.next_request(now_ms)
        return planned is not None and type(planned.request) is type(request) and self._awaits(request)

    def _plan(self, request: MembershipRequest, now_ms: int) -> Planned:
        parked_ms = getattr(request, "wait_ms", None) or 0
        # What is held hangs on this call's answer, as on a heartbeat's.
        grace_ms = self.settings.answer_grace_ms if self.assignment is None else self.settings.heartbeat_grace_ms
        return Planned(request, max(now_ms, self._pace.not_before_ms), parked_ms + grace_ms)

    def _plan_heartbeat(self, now_ms: int, due_ms: int, wait_ms: int) -> Planned:
        request = self._requests.heartbeat(self.member_id, self.generation_id, wait_ms)
        send_at_ms = max(now_ms, due_ms, self._pace.not_before_ms)
        return Planned(request, send_at_ms, wait_ms + self.settings.heartbeat_grace_ms)

    def _heartbeat_wait_ms(self, now_ms: int) -> int:
        """How long to park: never more than a third of what is left, and not at all after a failure.

        An answer that comes at once is what moves the deadline; a parked one only when it returns.
        """
        valid_until_ms = self._deadline.valid_until_ms
        if not self.settings.long_poll or self._pace.failures or valid_until_ms is None:
            return 0
        return max(0, min(self.settings.poll_ms, (valid_until_ms - now_ms) // 3))

    def _sync_request(self) -> SyncGroup:
        return self._requests.sync(
            self.member_id, self.generation_id, self.protocol_name, self._assignments, self._leader_error
        )

    # --- what the shell decides ---------------------------------------------------------------

    def assign(self, generation_id: int, assignments: Mapping[str, bytes]) -> None:
        """The leader's answer to `JoinedAsLeader`. Ignored where that generation is over."""
        if self.state is State.LEADING and generation_id == self.generation_id:
            self._assignments = tuple(assignments.items())
            self.state = State.SYNCING

    def assignment_failed(self, generation_id: int, detail: str) -> None:
        """The leader could not assign: it says so to all. Ignored where that generation is over."""
        if self.state is State.LEADING and generation_id == self.generation_id:
            self._leader_error = detail
            self.state = State.SYNCING

    def resync(self, assignments: Mapping[str, bytes]) -> bool:
        """The leader of a Stable group changes the assignment without a join phase; False where it cannot."""
        if self.state is not State.STABLE or not self.is_leader:
            return False
        self._assignments = tuple(assignments.items())
        self.state = State.SYNCING
        return True

    def request_rejoin(self, now_ms: int, reason: str, protocols: tuple[Protocol, ...] | None = None) -> list[Event]:
        """Join again, with new metadata where given. What is held is revoked first, as in any rebalance."""
        if self.state is State.LEAVING or self.is_final:
            return []
        self._protocols = protocols or self._protocols
        self._reason = reason
        if self.state in JOINS:
            # A join that is under way may complete with what it said: then there will be one more.
            self._metadata_is_stale = True
            return []
        if self.state in (State.REVOKING, State.AWAY):
            return []
        return self._leave_generation(now_ms, reason)

    def rejoin(self, now_ms: int, protocols: tuple[Protocol, ...] | None = None, *, holding: bool = False) -> None:
        """The shell's answer to `RebalanceStarted`, with what is to be said of this member now, if that is news.

        Work has stopped, and nothing is held any more; or, with `holding`, what is held stays held while joining,
        which is safe only where the metadata in `protocols` names all of it.
        """
        if self.state is not State.REVOKING:
            return
        self._protocols = protocols or self._protocols
        if holding:
            self._back_to_joining(now_ms)
        else:
            self._forget_generation(now_ms)

    def say(self, protocols: tuple[Protocol, ...]) -> None:
        """What to say of this member when it joins next. What is under way is left alone."""
        self._protocols = protocols

    def leave(self, now_ms: int, reason: str) -> list[Event]:
        """Give everything up and leave. The shell has stopped its work before."""
        self._comes_back = self._joins_after_leaving = False
        if self.is_final or self.state is State.LEAVING:
            return []
        self.assignment = None
        if not self.member_id:
            return self.abandon()
        self.state = State.LEAVING
        self._reason = reason
        self._pace.reset()  # Whoever closes waits for this: a long outage before must not make it slow.
        self._pace.at_once(now_ms)
        return []

    def step_aside(self, now_ms: int, reason: str) -> list[Event]:
        """Leave as in `leave`, but only until `come_back`."""
        events = self.leave(now_ms, reason) if self.member_id else []
        if not self.is_final:
            self._comes_back = True
            self.assignment = None
            if self.state is not State.LEAVING:
                self._go_away(now_ms)
        return events

    def come_back(self, now_ms: int) -> None:
        """Join again after `step_aside`, as somebody new; once it has left, where that is still under way."""
        self._comes_back = False
        if self.state is State.AWAY:
            self._forget_member(now_ms)
        elif self.state is State.LEAVING:
            self._joins_after_leaving = True

    def abandon(self) -> list[Event]:
        """Final without telling the coordinator: a static member that comes back within its session."""
        if self.is_final:
            return []
        self.assignment = None
        self.state = State.LEFT
        return [Left()]

    # --- what happened ------------------------------------------------------------------------

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

        Answers to commits are reported here, too: they renew the session or tell that it is over.
        A coordinator that asks for patience (`retry_after_ms`) is not called before.
        """
        events = self._reachability.answer(reply.error, sent_at_ms)
        if self._awaits(request):
            match request, reply:
                case JoinGroup(), JoinReply():
                    events += self._on_join(reply, sent_at_ms, now_ms, jitter)
                case SyncGroup(), SyncReply():
                    events += self._on_sync(request, reply, sent_at_ms, now_ms, jitter)
                case Heartbeat(), HeartbeatReply():
                    events += self._on_heartbeat(request, reply, sent_at_ms, now_ms, jitter)
                case LeaveGroup(), _:
                    events += self._on_leave(reply.error in LATER, now_ms, jitter)
                case CommitOffsets(), CommitReply():
                    events += self._on_commit(reply, sent_at_ms, now_ms, jitter)
            if retry_after_ms and not isinstance(request, CommitOffsets):
                self._pace.heed(retry_after_ms, now_ms, self.deadline_ms)
        return events + self.on_time(now_ms)

    def on_failure(
        self, request: MembershipRequest | CommitOffsets, sent_at_ms: int, now_ms: int, jitter: float
    ) -> list[Event]:
        """No answer came: nobody knows whether the call was carried out. It is repeated after a pause."""
        events = self._reachability.silence(sent_at_ms)
        if self._awaits(request):
            match request:
                case JoinGroup():
                    self._phase.unanswered(sent_at_ms)
                    self._pause(now_ms, jitter)
                case LeaveGroup():
                    events += self._on_leave(True, now_ms, jitter)
                case SyncGroup() | Heartbeat():
                    self._pause(now_ms, jitter)
                case CommitOffsets():
                    pass  # The caller of the commit decides whether to repeat it.
        return events + self.on_time(now_ms)

    def on_time(self, now_ms: int) -> list[Event]:
        """Time has passed. At the deadline what is held is lost, whether or not anybody can be reached."""
        if self.assignment is None or self._deadline.holds(now_ms):
            return []
        return self._lose("deadline", ErrorCode.NONE, now_ms)

    def _awaits(self, request: MembershipRequest | CommitOffsets) -> bool:
        """Whether an answer to `request` can still concern this member as it stands now."""
        mine = (self.member_id, self.generation_id)
        match request:
            case JoinGroup():
                return self.state in JOINS and request.member_id == self.member_id
            case SyncGroup():
                return self.state is State.SYNCING and (request.member_id, request.generation_id) == mine
            case Heartbeat() | CommitOffsets():
                in_generation = self.state in IN_GENERATION or self.assignment is not None
                return in_generation and (request.member_id, request.generation_id) == mine
            case LeaveGroup():
                return self.state is State.LEAVING

    # --- join ---------------------------------------------------------------------------------

    def _on_join(self, reply: JoinReply, sent_at_ms: int, now_ms: int, jitter: float) -> list[Event]:
        match reply.error:
            case ErrorCode.NONE if reply.pending and reply.member_id:
                self._still_joining(reply.member_id, sent_at_ms, now_ms)
            case ErrorCode.NONE if not reply.pending and reply.member_id and reply.generation_id >= 0:
                return self._enter_generation(reply, sent_at_ms, now_ms)
            case ErrorCode.MEMBER_ID_REQUIRED if reply.member_id and not self.member_id:
                self._adopt_member_id(reply.member_id)
                self._pace.at_once(now_ms)
            case code if code in UNKNOWN and self.member_id:
                events = self._lose(code.value, code, now_ms)
                self._forget_member(now_ms)
                return events
            case code if code is ErrorCode.NONE or code in LATER or code in STRAY_FOR_JOIN:
                self._phase.unanswered(sent_at_ms)
                self._pause(now_ms, jitter)
            case code:
                return self._fail(code, reply.detail, now_ms)
        return []

    def _still_joining(self, member_id: str, sent_at_ms: int, now_ms: int) -> None:
        """Pending: joined, but the phase goes on. It cannot have completed before this call was sent.

        The session runs again since the answer. Who has joined is not dropped for being late to join.
        """
        self._adopt_member_id(member_id)
        if self.assignment is not None:
            self._deadline.renewed(sent_at_ms)
            self._deadline.settled(sent_at_ms)
        self._phase.pending(sent_at_ms)
        self._pace.at_once(now_ms)
        self.state = State.JOINING

    def _adopt_member_id(self, member_id: str) -> None:
        if member_id != self.member_id:
            self.member_id = member_id
            self._phase.forget_member()

    def _enter_generation(self, reply: JoinReply, sent_at_ms: int, now_ms: int) -> list[Event]:
        self._adopt_member_id(reply.member_id)
        self._phase.unanswered(sent_at_ms)
        if self.assignment is None:
            self._deadline.clear()
        if self._phase.renewed(reply.generation_id) and self._phase.since_ms is not None:
            self._deadline.renewed(self._phase.since_ms)
            self._deadline.settled(self._phase.since_ms)
        self._heartbeat_at_ms = (self._deadline.renewed_at_ms or 0) + self.settings.heartbeat_interval_ms
        self._phase.completed(reply.generation_id)
        self._has_synced = False
        self._reason = ""
        self._pace.at_once(now_ms)
        self.generation_id = reply.generation_id
        self.protocol_name = reply.protocol_name or ""
        self.leader_id = reply.leader_id
        if not self.is_leader or reply.skip_assignment:
            self.state = State.SYNCING
            return []
        self.state = State.LEADING
        return [JoinedAsLeader(self.generation_id, self.protocol_name, reply.members)]

    # --- sync, heartbeat, commit, leave -------------------------------------------------------

    def _on_sync(
        self, request: SyncGroup, reply: SyncReply, sent_at_ms: int, now_ms: int, jitter: float
    ) -> list[Event]:
        match reply.error:
            case ErrorCode.NONE if request.leader_error is not None:
                return self._assignment_failed(request.leader_error, now_ms, jitter)
            case ErrorCode.NONE if reply.pending:
                self._deadline.settled(sent_at_ms)
                self._pace.at_once(now_ms)
                return []
            case ErrorCode.NONE:
                return self._synced(reply, sent_at_ms, now_ms)
            case ErrorCode.ASSIGNMENT_FAILED:
                return self._assignment_failed(reply.detail, now_ms, jitter)
            case code:
                return self._refused(code, reply.detail, now_ms, jitter)

    def _synced(self, reply: SyncReply, sent_at_ms: int, now_ms: int) -> list[Event]:
        self._assignments = ()  # Delivered: if we must ask once more, it is to fetch ours.
        if reply.generation_id > self.generation_id:
            self.generation_id = self._phase.seen_generation_id = reply.generation_id
        self._deadline.settled(sent_at_ms)
        if not self._deadline.holds(now_ms):
            return []  # A heartbeat goes first, then this sync again: nothing is handed out that is over already.
        self._has_synced = True
        self._pace.reset()
        self._pace.at_once(now_ms)
        if self.settings.long_poll:
            self._heartbeat_at_ms = now_ms
        self.state = State.STABLE
        self.assignment = reply.assignment
        assigned = Assigned(self.generation_id, self.protocol_name, self.leader_id, self.is_leader, reply.assignment)
        if not self._metadata_is_stale:
            return [assigned]
        self._metadata_is_stale = False
        return [assigned, *self._leave_generation(now_ms, self._reason or "its metadata changed")]

    def _on_heartbeat(
        self, request: Heartbeat, reply: HeartbeatReply, sent_at_ms: int, now_ms: int, jitter: float
    ) -> list[Event]:
        self._heartbeat_at_ms = sent_at_ms + self._heartbeat_spacing_ms(request)
        match reply.error:
            case ErrorCode.NONE:
                self._heartbeat_accepted(reply.generation_id, sent_at_ms, now_ms)
                return []
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self._deadline.renewed(sent_at_ms)
                return self._rebalance(now_ms)
            case code:
                return self._refused(code, reply.detail, now_ms, jitter)

    def _heartbeat_spacing_ms(self, request: Heartbeat) -> int:
        """One parked heartbeat follows the other, unless a coordinator answers sooner than it was asked to."""
        interval_ms = self.settings.heartbeat_interval_ms
        if self.settings.long_poll and self.state is State.STABLE:
            return min(interval_ms, request.wait_ms or 0)
        return interval_ms

    def _heartbeat_accepted(self, generation_id: int, sent_at_ms: int, now_ms: int) -> None:
        self._deadline.renewed(sent_at_ms)
        if self._has_synced:
            # Else the coordinator still waits for our sync, as long as for a join, however alive we are.
            self._deadline.settled(sent_at_ms)
        self._pace.at_once(now_ms)
        if self.state is State.STABLE:
            self._pace.reset()
        if generation_id > self.generation_id and self.state is not State.REVOKING:
            # Resync: the leader changed the assignment. We are in the new generation already; fetch our part.
            self.generation_id = self._phase.seen_generation_id = generation_id
            self._assignments = ()
            self.state = State.SYNCING

    def _on_commit(self, reply: CommitReply, sent_at_ms: int, now_ms: int, jitter: float) -> list[Event]:
        match reply.error:
            case ErrorCode.NONE:
                if any(partition.error is ErrorCode.NONE for partition in reply.partitions):
                    self._deadline.renewed(sent_at_ms)
            case ErrorCode.ILLEGAL_GENERATION | ErrorCode.REBALANCE_IN_PROGRESS:
                self._heartbeat_at_ms = now_ms  # Its answer tells a resync from a generation that is over.
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.FENCED_INSTANCE_ID:
                return self._refused(reply.error, reply.detail, now_ms, jitter)
            case _:
                pass  # Concerns the commit alone.
        return []

    def _on_leave(self, again: bool, now_ms: int, jitter: float) -> list[Event]:
        self._leave_tries += 1
        if again and self._leave_tries < _LEAVE_TRIES:
            self._pause(now_ms, jitter)
            return []
        if self._comes_back or self._joins_after_leaving:
            self._go_away(now_ms)
            return []
        return self.abandon()

    def _go_away(self, now_ms: int) -> None:
        self._forget_member(now_ms)
        self._leave_tries = 0
        self.state = State.UNJOINED if self._joins_after_leaving else State.AWAY
        self._joins_after_leaving = False

    # --- what ends a generation ---------------------------------------------------------------

    def _refused(self, code: ErrorCode, detail: str, now_ms: int, jitter: float) -> list[Event]:
        """A sync, heartbeat or commit of the current generation was answered with an error."""
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            return self._rebalance(now_ms)
        if code is ErrorCode.ILLEGAL_GENERATION:
            return self._lose(code.value, code, now_ms)
        if code in UNKNOWN:
            events = self._lose(code.value, code, now_ms)
            self._forget_member(now_ms)
            return events
        if code in LATER or code is ErrorCode.ASSIGNMENT_FAILED:
            self._pause(now_ms, jitter)
            return []
        return self._fail(code, detail, now_ms)

    def _rebalance(self, now_ms: int) -> list[Event]:
        """The coordinator is in a join phase: what is held is revoked before we join it."""
        self._phase.told = True
        return [] if self.state is State.REVOKING else self._leave_generation(now_ms, "rebalance")

    def _leave_generation(self, now_ms: int, reason: str) -> list[Event]:
        if self.assignment is None:
            # KAFKA-13891: joining again under a generation that was never synced would revive it.
            self._forget_generation(now_ms)
            return []
        self.state = State.REVOKING
        self._heartbeat_at_ms = now_ms + self.settings.heartbeat_interval_ms
        return [RebalanceStarted(self.generation_id, reason)]

    def _assignment_failed(self, detail: str, now_ms: int, jitter: float) -> list[Event]:
        event = AssignmentFailed(self.generation_id, detail)
        self._phase.told = True
        events = self._leave_generation(now_ms, "assignment failed")
        self._pause(now_ms, jitter)
        return [event, *events]

    def _lose(self, reason: str, code: ErrorCode, now_ms: int) -> list[Event]:
        event = Lost(self.generation_id, reason, code)
        was_held = self.assignment is not None
        self._phase.told = False
        # A join that is under way may still claim what is lost: then nobody would be given that.
        self._metadata_is_stale = was_held and self.state in JOINS
        self._forget_generation(now_ms)
        return [event] if was_held else []

    def _fail(self, code: ErrorCode, detail: str, now_ms: int) -> list[Event]:
        events = self._lose(code.value, code, now_ms)
        self.state = State.FENCED if code is ErrorCode.FENCED_INSTANCE_ID else State.FAILED
        return [*events, Failed(code, detail)]

    def _forget_generation(self, now_ms: int) -> None:
        """Back to joining, as the same member. The last generation seen is remembered only to judge the next join."""
        self._back_to_joining(now_ms)
        self.generation_id = NO_GENERATION
        self.leader_id = ""
        self.assignment = None
        self._deadline.clear()

    def _back_to_joining(self, now_ms: int) -> None:
        if self.state in JOINS:
            return  # Lost while joining: the join goes on, and when it may have completed is still known.
        self.state = State.UNJOINED
        self._assignments = ()
        self._leader_error = None
        self._phase.since_ms = None
        self._metadata_is_stale = False
        self._pace.at_once(now_ms)

    def _forget_member(self, now_ms: int) -> None:
        """Back to joining, as somebody new."""
        self._forget_generation(now_ms)
        self.state = State.UNJOINED
        self._phase.since_ms = None
        self._pace.at_once(now_ms)
        self._phase.told = False
        self._metadata_is_stale = False
        self._adopt_member_id("")

    def _pause(self, now_ms: int, jitter: float) -> None:
        hurries = self.state in IN_GENERATION or self.assignment is not None
        self._pace.pause(now_ms, jitter, hurries=hurries)
