"""The effect of each answer on a member."""

from __future__ import annotations

from dataclasses import dataclass

from rota.core.membership.events import (
    STRAY_FOR_JOIN,
    UNKNOWN,
    Assigned,
    Event,
    JoinedAsLeader,
    MembershipRequest,
    State,
)
from rota.core.membership.standing import Standing
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    CommitOffsets,
    CommitReply,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    Reply,
    SyncGroup,
    SyncReply,
)

_LEAVE_TRIES = 3
_NOT_SENDABLE = frozenset({ErrorCode.PAYLOAD_TOO_LARGE, ErrorCode.INVALID_REQUEST})
"""The coordinator will never accept these assignments."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a call was sent and its answer read, and a random number from 0 to 1, for a pause if one follows."""

    sent_at_ms: int
    now_ms: int
    jitter: float


def take_answer(
    standing: Standing, request: MembershipRequest | CommitOffsets, reply: Reply, at: Moment
) -> list[Event]:
    """An answer came that this member awaits."""
    if mismatch(standing, request, reply):
        return take_silence(standing, request, at)
    match request, reply:
        case JoinGroup(), JoinReply():
            return _take_join(standing, reply, at)
        case SyncGroup(), SyncReply():
            return _take_sync(standing, request, reply, at)
        case Heartbeat(), HeartbeatReply():
            return _take_heartbeat(standing, request, reply, at)
        case LeaveGroup(), _:
            return _take_leave(standing, at, again=reply.error in standing.settings.retried_codes, is_answered=True)
        case CommitOffsets(), CommitReply():
            return _take_commit(standing, reply, at)
    return []


def mismatch(standing: Standing, request: MembershipRequest | CommitOffsets, reply: Reply) -> str:
    """The error in an answer for another kind of group than the request's; empty without one.

    A member that took up such an answer would read bytes by the wrong protocol.
    """
    if not isinstance(request, JoinGroup | SyncGroup) or not isinstance(reply, JoinReply | SyncReply):
        return ""
    if reply.error is not ErrorCode.NONE or reply.pending:
        return ""
    if reply.protocol_type and reply.protocol_type != standing.settings.protocol_type:
        return f"the answer is about a group of type {reply.protocol_type!r}, not {standing.settings.protocol_type!r}"
    if isinstance(request, JoinGroup):
        offered: set[str | None] = {protocol.name for protocol in request.protocols}
    else:
        offered = {request.protocol_name}
    if reply.protocol_name and reply.protocol_name not in offered:
        return f"the answer names the protocol {reply.protocol_name!r}, which this member did not offer"
    return ""


def take_silence(standing: Standing, request: MembershipRequest | CommitOffsets, at: Moment) -> list[Event]:
    """No answer came: the outcome of the call is unknown. It is retried after a pause."""
    match request:
        case JoinGroup():
            standing.phase.unanswered(at.sent_at_ms)
            standing.pause(at.now_ms, at.jitter)
        case LeaveGroup():
            return _take_leave(standing, at, again=True, is_answered=False)
        case SyncGroup() | Heartbeat():
            standing.pause(at.now_ms, at.jitter)
        case CommitOffsets():
            pass  # The caller of the commit decides whether to repeat it.
    return []


# --- join -------------------------------------------------------------------------------------


def _take_join(standing: Standing, reply: JoinReply, at: Moment) -> list[Event]:
    match reply.error:
        case ErrorCode.NONE if reply.pending and reply.member_id:
            _still_joining(standing, reply.member_id, at)
        case ErrorCode.NONE if not reply.pending and reply.member_id and reply.generation_id >= 0:
            return _enter_generation(standing, reply, at)
        case ErrorCode.MEMBER_ID_REQUIRED if reply.member_id and not standing.member_id:
            standing.adopt_member_id(reply.member_id)
            standing.pace.at_once(at.now_ms)
        case code if code in UNKNOWN and standing.member_id:
            return standing.become_unknown(code, at.now_ms)
        case code if code is ErrorCode.NONE or code in standing.settings.retried_codes | STRAY_FOR_JOIN:
            standing.phase.unanswered(at.sent_at_ms)
            standing.pause(at.now_ms, at.jitter)
        case code:
            return standing.fail(code, reply.detail, at.now_ms)
    return []


def _still_joining(standing: Standing, member_id: str, at: Moment) -> None:
    """Pending: joined, but the phase goes on. It cannot have completed before this call was sent.

    The session runs again since the answer. A member that has joined is not dropped for being late to join.
    """
    standing.adopt_member_id(member_id)
    if standing.assignment is not None:
        standing.deadline.renewed(at.sent_at_ms)
        standing.deadline.settled(at.sent_at_ms)
    standing.phase.pending(at.sent_at_ms)
    standing.pace.pending(at.sent_at_ms, at.now_ms)
    standing.state = State.JOINING


def _enter_generation(standing: Standing, reply: JoinReply, at: Moment) -> list[Event]:
    standing.adopt_member_id(reply.member_id)
    standing.phase.unanswered(at.sent_at_ms)
    if standing.assignment is None:
        standing.deadline.clear()
    if standing.phase.renewed(reply.generation_id) and standing.phase.since_ms is not None:
        standing.deadline.renewed(standing.phase.since_ms)
        standing.deadline.settled(standing.phase.since_ms)
    standing.heartbeat_at_ms = (standing.deadline.renewed_at_ms or 0) + standing.settings.heartbeat_interval_ms
    return _begin_generation(standing, reply, at.now_ms)


def enter_offered(standing: Standing, now_ms: int) -> list[Event]:
    """Enter the generation that an election took the member along into, as by a join that the coordinator answers from
    memory. Nothing if there is none, or the coordinator has other metadata of this member: then it joins.

    No call of this member was sent since the election, so none has renewed its session, at the coordinator or here: the
    term counts from the last renewal that was acknowledged. A heartbeat goes at once. It renews, shows the coordinator
    that the member has its share, and finds out where the offer is outdated.
    """
    offer, standing.offer = standing.offer, None
    if (
        offer is None
        or standing.assignment is None
        or standing.is_held_off
        or standing.protocols != standing.joined_with
    ):
        return []
    events = _begin_generation(standing, offer, now_ms)
    standing.heartbeat_at_ms = now_ms
    return events


def _offer_in(standing: Standing, reply: HeartbeatReply) -> JoinReply | None:
    """The generation after this member's that it may enter by this answer, with its share."""
    offer = reply.entered
    if offer is None or offer.assignment is None or offer.member_id != standing.member_id:
        return None
    is_its_kind = offer.protocol_type == standing.settings.protocol_type
    is_later = offer.generation_id > standing.last_generation_id
    return offer if is_its_kind and is_later and offer.protocol_name == standing.protocol_name else None


def _begin_generation(standing: Standing, reply: JoinReply, now_ms: int) -> list[Event]:
    standing.phase.completed(reply.generation_id)
    standing.has_synced = False
    standing.share = None
    standing.reason = ""
    standing.pace.at_once(now_ms)
    standing.generation_id = reply.generation_id
    standing.hold(reply.generation_id)
    standing.take_token(reply.fencing_token)
    standing.protocol_name = reply.protocol_name or ""
    standing.leader_id = reply.leader_id
    if reply.assignment is not None:
        standing.state = State.SYNCING
        if standing.deadline.is_fresh(now_ms, standing.settings.poll_ms):
            return _hold(standing, reply.assignment, now_ms)
        standing.share = reply.assignment  # Little is left of the session, as after a long phase: a heartbeat first.
        return []
    if not standing.is_leader or reply.skip_assignment:
        standing.state = State.SYNCING
        return []
    standing.state = State.LEADING
    return [JoinedAsLeader(standing.generation_id, standing.protocol_name, reply.members)]


# --- sync -------------------------------------------------------------------------------------


def _take_sync(standing: Standing, request: SyncGroup, reply: SyncReply, at: Moment) -> list[Event]:
    match reply.error:
        case ErrorCode.NONE if request.leader_error is not None:
            return standing.fail_generation(request.leader_error, at.now_ms, at.jitter)
        case ErrorCode.NONE if reply.pending:
            standing.deadline.settled(at.sent_at_ms)
            standing.pace.pending(at.sent_at_ms, at.now_ms)
            return []
        case ErrorCode.NONE:
            return _synced(standing, reply, at)
        case code if code in _NOT_SENDABLE and request.assignments:
            # Another leader would fail alike, so all members learn why instead of losing one leader after the other.
            standing.assignments, standing.leader_error = (), f"{code}: {reply.detail}"
            standing.pace.at_once(at.now_ms)
            return []
        case ErrorCode.ASSIGNMENT_FAILED:
            return standing.fail_generation(reply.detail, at.now_ms, at.jitter)
        case code:
            return standing.refused(code, reply.detail, at.now_ms, at.jitter)


def _synced(standing: Standing, reply: SyncReply, at: Moment) -> list[Event]:
    standing.assignments = ()  # Delivered: if we must ask once more, it is to fetch ours.
    standing.see_resync(reply.generation_id)
    standing.take_token(reply.fencing_token)
    standing.deadline.settled(at.sent_at_ms)
    return _hold(standing, reply.assignment, at.now_ms)


def _hold(standing: Standing, assignment: bytes, now_ms: int) -> list[Event]:
    """The member has its share, by the answer to its sync, or by that to its join where the server has assigned."""
    if not standing.deadline.holds(now_ms):
        return []  # A heartbeat goes first, then a sync: nothing is handed out that is over already.
    standing.share = None
    standing.has_synced = True
    standing.pace.reset()
    standing.pace.at_once(now_ms)
    standing.heartbeat_at_ms = now_ms
    standing.state = State.STABLE
    standing.assignment = assignment
    assigned = Assigned(
        standing.generation_id,
        standing.protocol_name,
        standing.leader_id,
        standing.is_leader,
        assignment,
        standing.fencing_token,
    )
    if not standing.metadata_is_stale:
        return [assigned]
    standing.metadata_is_stale = False
    return [assigned, *standing.leave_generation(now_ms, standing.reason or "its metadata changed")]


# --- heartbeat, commit, leave -----------------------------------------------------------------


def _take_heartbeat(standing: Standing, request: Heartbeat, reply: HeartbeatReply, at: Moment) -> list[Event]:
    standing.heartbeat_at_ms = at.sent_at_ms + _heartbeat_spacing_ms(standing, request, at)
    match reply.error:
        case ErrorCode.NONE:
            return _heartbeat_accepted(standing, request, reply, at)
        case ErrorCode.REBALANCE_IN_PROGRESS:
            standing.deadline.renewed(at.sent_at_ms)
            events = standing.rebalance(at.now_ms)
            standing.offer = _offer_in(standing, reply)
            return events
        case code:
            return standing.refused(code, reply.detail, at.now_ms, at.jitter)


def _heartbeat_spacing_ms(standing: Standing, request: Heartbeat, at: Moment) -> int:
    """One parked heartbeat follows the other, unless it was answered before half of the time that was asked for."""
    interval_ms = standing.settings.heartbeat_interval_ms
    if standing.state is not State.STABLE:
        return interval_ms
    return 0 if at.now_ms - at.sent_at_ms >= request.wait_ms // 2 else min(interval_ms, request.wait_ms)


def _counted_ms(request: Heartbeat, reply: HeartbeatReply, at: Moment) -> int:
    """How long after its sending a heartbeat still renewed the session: for its parked time, less 2 % for the clocks.

    The coordinator received it after it was sent, and renewed the session once more when the parked time was over. It
    parks no call for longer than it was asked to, and not beyond its answer.
    """
    return max(0, min(reply.waited_ms * 49 // 50, request.wait_ms, at.now_ms - at.sent_at_ms))


def _heartbeat_accepted(standing: Standing, request: Heartbeat, reply: HeartbeatReply, at: Moment) -> list[Event]:
    standing.renewed_by(reply, at.sent_at_ms + _counted_ms(request, reply, at))
    standing.pace.at_once(at.now_ms)
    if standing.state is State.STABLE:
        standing.pace.reset()
    if reply.generation_id > standing.generation_id and standing.state is not State.REVOKING:
        standing.see_resync(reply.generation_id)
        standing.assignments = ()
        standing.share = None
        standing.state = State.SYNCING
    if standing.share is None:
        return []
    if reply.state:
        standing.deadline.settled(at.sent_at_ms)
    return _hold(standing, standing.share, at.now_ms)


def _take_commit(standing: Standing, reply: CommitReply, at: Moment) -> list[Event]:
    match reply.error:
        case ErrorCode.NONE:
            if any(partition.error is ErrorCode.NONE for partition in reply.partitions):
                standing.deadline.renewed(at.sent_at_ms)
        case ErrorCode.ILLEGAL_GENERATION | ErrorCode.REBALANCE_IN_PROGRESS:
            standing.heartbeat_at_ms = at.now_ms  # Its answer distinguishes a resync from a generation that is over.
        case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.FENCED_INSTANCE_ID:
            return standing.refused(reply.error, reply.detail, at.now_ms, at.jitter)
        case _:
            pass  # Concerns the commit alone.
    return []


def _take_leave(standing: Standing, at: Moment, *, again: bool, is_answered: bool) -> list[Event]:
    """A coordinator that answers, and cannot do it now, is asked for as long as one answer may take: until the group
    is left, or the session is over, no other member gets this one's share.
    """
    standing.leave_tries += 1
    is_in_time = is_answered and at.now_ms < standing.leave_ends_ms
    if again and (is_in_time or standing.leave_tries < _LEAVE_TRIES):
        standing.pause(at.now_ms, at.jitter)
        return []
    if standing.is_away or standing.joins_after_leaving:
        standing.go_away(at.now_ms)
        return []
    return standing.depart()
