"""The state of one member, and the ways in which its generation ends."""

from __future__ import annotations

from rota.core.membership.backoff import Pace
from rota.core.membership.deadline import JoinPhase, LocalDeadline
from rota.core.membership.events import (
    FINAL,
    IN_GENERATION,
    JOINS,
    UNKNOWN,
    AssignmentFailed,
    Event,
    Failed,
    Left,
    Lost,
    MembershipRequest,
    RebalanceStarted,
    State,
)
from rota.core.membership.settings import MembershipSettings
from rota.protocol.defaults import REQUEST_TIMEOUT_MS
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import fencing_token, takeover_of
from rota.protocol.messages import (
    NO_GENERATION,
    CommitOffsets,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    SyncGroup,
)


class Standing:
    """What a member knows of itself. Its methods are the ways out of a generation; they return events for the shell.

    `Membership` adds what the shell asks for and sends; `answers.py` changes it by what came back.
    """

    def __init__(self, settings: MembershipSettings) -> None:
        self.settings = settings
        self.state = State.UNJOINED
        self.member_id = ""
        self.generation_id = NO_GENERATION
        self.last_generation_id = NO_GENERATION
        """The highest generation that it has held in this group, under whatever member id."""
        self.takeover = 0
        """This member's number among the takeovers of its generation, as the coordinator said."""
        self.protocol_name = ""
        self.leader_id = ""
        self.assignment: bytes | None = None
        self.protocols = settings.protocols
        """The metadata for its next join."""
        self.joined_with = settings.protocols
        """The metadata of its last join."""
        self.pace = Pace(settings)
        self.deadline = LocalDeadline(settings)
        self.phase = JoinPhase(is_static=settings.group_instance_id is not None)
        self.heartbeat_at_ms = 0
        self.has_synced = False
        self.assignments: tuple[tuple[str, bytes], ...] = ()
        """As the leader: the assignments of all members, until they are delivered."""
        self.share: bytes | None = None
        """Its share by the answer to its join, until a heartbeat has renewed the session: then it is held."""
        self.offer: JoinReply | None = None
        """The next generation, where an election took it along: `answers.enter_offered` enters it without a join, once
        the shell has answered `RebalanceStarted`.
        """
        self.leader_error: str | None = None
        """As the leader: why there are none."""
        self.reason = ""
        """Why it joins or leaves."""
        self.failed_unit = ""
        """The unit of work that failed, where it leaves for that."""
        self.metadata_is_stale = False
        """A join in flight has outdated metadata."""
        self.is_held_off = False
        """The program still ends its work on a lost share: it does not join, and a join under way claims as before."""
        self.is_away = False
        """It has stepped aside, or is about to."""
        self.joins_after_leaving = False
        self.leave_tries = 0
        self.leave_began_ms = 0

    @property
    def is_leader(self) -> bool:
        return self.member_id != "" and self.leader_id == self.member_id

    @property
    def is_in_generation(self) -> bool:
        return self.state in IN_GENERATION or self.assignment is not None

    @property
    def owes_assignment(self) -> bool:
        """Whether it holds its share, and the group waits for the assignment that it makes as the leader."""
        return self.is_leader and self.assignment is not None and self.state in (State.LEADING, State.SYNCING)

    @property
    def fencing_token(self) -> int:
        """This member's, in the generation that it is in. No token of its predecessor is as high."""
        return fencing_token(self.generation_id, self.takeover)

    def take_token(self, token: int) -> None:
        """The coordinator said this member's token; a coordinator that counts no takeovers does not."""
        self.takeover = takeover_of(token)

    @property
    def deadline_ms(self) -> int | None:
        """When the share that is held is lost unless renewed; None while no share is held."""
        return None if self.assignment is None else self.deadline.valid_until_ms

    @property
    def leaves_for_good(self) -> bool:
        return self.state is State.LEAVING and not (self.is_away or self.joins_after_leaving)

    @property
    def patience_ends_ms(self) -> int | None:
        """When a share that is held is lost, or a leave is given up; None if waiting loses nothing."""
        return self.leave_ends_ms if self.state is State.LEAVING else self.deadline_ms

    @property
    def leave_ends_ms(self) -> int:
        """Until when a leave that the coordinator refuses for now is repeated."""
        return self.leave_began_ms + REQUEST_TIMEOUT_MS

    def awaits(self, request: MembershipRequest | CommitOffsets) -> bool:
        """Whether an answer to `request` can still concern this member as it stands now."""
        mine = (self.member_id, self.generation_id)
        match request:
            case JoinGroup():
                return self.state in JOINS and request.member_id == self.member_id
            case SyncGroup():
                return self.state is State.SYNCING and (request.member_id, request.generation_id) == mine
            case Heartbeat() | CommitOffsets():
                return self.is_in_generation and (request.member_id, request.generation_id) == mine
            case LeaveGroup():
                return self.state is State.LEAVING

    def adopt_member_id(self, member_id: str) -> None:
        if member_id != self.member_id:
            self.member_id = member_id
            self.phase.forget_member()

    def see_resync(self, generation_id: int) -> None:
        """The group's leader changed the assignment: we are in the next generation without having joined it."""
        if generation_id > self.generation_id:
            self.generation_id = self.phase.seen_generation_id = generation_id
            self.takeover = 0
            self.hold(generation_id)

    def hold(self, generation_id: int) -> None:
        """It is in this generation: the coordinator grants later ones alone, also where its store forgets this one."""
        self.last_generation_id = max(self.last_generation_id, generation_id)

    def renewed_by(self, reply: HeartbeatReply, sent_at_ms: int) -> None:
        """A heartbeat renewed the session.

        A replica that answers for an unreachable owner does not know the group's state: that owner may be in a join
        phase. Until we have synced, an owner waits for our sync as long as for a join, however alive we are.
        """
        self.deadline.renewed(sent_at_ms)
        if self.shows_settled(reply):
            self.deadline.settled(sent_at_ms)

    def shows_settled(self, reply: HeartbeatReply) -> bool:
        """Whether this answer found the group in our generation, and in no join phase."""
        return reply.error is ErrorCode.NONE and bool(reply.state) and self.has_synced

    def pause(self, now_ms: int, jitter: float) -> None:
        """Before the next call, after a failure. A pause must not cost the member its session."""
        if self.is_in_generation:
            cap_ms = self.settings.heartbeat_backoff_cap_ms
        elif self.member_id:
            cap_ms = self.settings.rejoin_backoff_cap_ms
        else:
            cap_ms = self.settings.backoff_cap_ms
        self.pace.pause(now_ms, jitter, cap_ms)

    # --- out of a generation ------------------------------------------------------------------

    def refused(self, code: ErrorCode, detail: str, now_ms: int, jitter: float) -> list[Event]:
        """A sync, heartbeat or commit of the current generation was answered with an error."""
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            return self.rebalance(now_ms)
        if code is ErrorCode.ILLEGAL_GENERATION:
            return self.lose_share(code.value, code, now_ms)
        if code in UNKNOWN:
            return self.become_unknown(code, now_ms)
        if code in self.settings.retried_codes or code is ErrorCode.ASSIGNMENT_FAILED:
            self.pause(now_ms, jitter)
            return []
        return self.fail(code, detail, now_ms)

    def rebalance(self, now_ms: int) -> list[Event]:
        """The coordinator is in a join phase: the assignment is revoked before we join it."""
        self.phase.notified = True
        return [] if self.state is State.REVOKING else self.leave_generation(now_ms, "rebalance")

    def fail_generation(self, detail: str, now_ms: int, jitter: float) -> list[Event]:
        event = AssignmentFailed(self.generation_id, detail)
        self.phase.notified = True
        events = self.leave_generation(now_ms, "assignment failed")
        self.pause(now_ms, jitter)
        return [event, *events]

    def leave_generation(self, now_ms: int, reason: str) -> list[Event]:
        self.offer = self.share = None
        if self.assignment is None:
            # KAFKA-13891: joining again under a generation that was never synced would revive it.
            self.forget_generation(now_ms)
            return []
        self.state = State.REVOKING
        self.heartbeat_at_ms = now_ms + self.settings.heartbeat_interval_ms
        return [RebalanceStarted(self.generation_id, reason)]

    def lose_share(self, reason: str, code: ErrorCode, now_ms: int) -> list[Event]:
        event = Lost(self.generation_id, reason, code)
        was_held = self.assignment is not None
        self.phase.notified = False
        # A join in flight may still claim lost partitions: then no member would be assigned them.
        self.metadata_is_stale = was_held and self.state in JOINS
        self.forget_generation(now_ms)
        return [event] if was_held else []

    def become_unknown(self, code: ErrorCode, now_ms: int) -> list[Event]:
        """The coordinator does not know this member (any more)."""
        events = self.lose_share(code.value, code, now_ms)
        self.forget_member(now_ms)
        return events

    def fail(self, code: ErrorCode, detail: str, now_ms: int) -> list[Event]:
        events = self.lose_share(f"{code}: {detail}" if detail else code.value, code, now_ms)
        self.state = State.FENCED if code is ErrorCode.FENCED_INSTANCE_ID else State.FAILED
        return [*events, Failed(code, detail)]

    def depart(self) -> list[Event]:
        """End the membership for good, whether or not the coordinator knows."""
        if self.state in FINAL:
            return []
        self.assignment = None
        self.state = State.LEFT
        return [Left()]

    def go_away(self, now_ms: int) -> None:
        """End the membership for now: the member may come back."""
        self.forget_member(now_ms)
        self.leave_tries = 0
        self.state = State.UNJOINED if self.joins_after_leaving else State.AWAY
        self.joins_after_leaving = False

    # --- back to joining ----------------------------------------------------------------------

    def forget_generation(self, now_ms: int) -> None:
        """Back to joining, as the same member. The last generation seen is remembered only to judge the next join."""
        self.back_to_joining(now_ms)
        self.generation_id = NO_GENERATION
        self.leader_id = ""
        self.assignment = None
        self.deadline.clear()

    def back_to_joining(self, now_ms: int) -> None:
        if self.state in JOINS:
            return  # Lost while joining: the join goes on, and when it may have completed is still known.
        self.state = State.UNJOINED
        self.assignments = ()
        self.share = None
        self.leader_error = None
        self.phase.since_ms = None
        self.metadata_is_stale = False
        self.pace.at_once(now_ms)

    def forget_member(self, now_ms: int) -> None:
        """Back to joining, as a new member."""
        self.forget_generation(now_ms)
        self.state = State.UNJOINED
        self.phase.since_ms = None
        self.pace.at_once(now_ms)
        self.phase.notified = False
        self.metadata_is_stale = False
        self.adopt_member_id("")
