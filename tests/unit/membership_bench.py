"""A bench for one member's client core: it plays network and shell, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field

from rota.core.membership import Event, Membership, MembershipSettings, State
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatReply,
    JoinedMember,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    Protocol,
    Reply,
    SyncGroup,
    SyncReply,
)

SESSION_MS = 15_000
MARGIN_MS = 300
REBALANCE_MS = 30_000
POLL_MS = 3_000

SETTINGS = MembershipSettings(
    namespace="default",
    group_id="workers",
    protocol_type="worker",
    protocols=(Protocol("range", b"mine"),),
    session_timeout_ms=SESSION_MS,
    rebalance_timeout_ms=REBALANCE_MS,
)

CLAIMS = (Protocol("range", b"mine, and what I hold"),)
MEMBER_ID_REQUIRED = JoinReply(ErrorCode.MEMBER_ID_REQUIRED, member_id="m-1")
BEATING = HeartbeatReply(generation_id=1, state="Stable")
REBALANCING = HeartbeatReply(ErrorCode.REBALANCE_IN_PROGRESS)


def joined(generation_id: int = 1, *, member_id: str = "m-1", leader_id: str = "m-0", skip: bool = False) -> JoinReply:
    members = (JoinedMember(member_id, None, b"mine"),) if member_id == leader_id else ()
    return JoinReply(
        member_id=member_id,
        generation_id=generation_id,
        protocol_type="worker",
        protocol_name="range",
        leader_id=leader_id,
        members=members,
        skip_assignment=skip,
    )


def synced(assignment: bytes = b"share", generation_id: int = 1) -> SyncReply:
    return SyncReply(generation_id=generation_id, protocol_name="range", assignment=assignment)


@dataclass
class Bench:
    """Plays network and shell for one member. Its clock stands still but for these methods."""

    membership: Membership
    now_ms: int = 1_000
    sent_at_ms: int = 0
    events: list[Event] = field(default_factory=list)

    def sends(self) -> JoinGroup | SyncGroup | Heartbeat | LeaveGroup:
        """Wait until the next request is due, and send it."""
        planned = self.membership.next_request(self.now_ms)
        assert planned is not None
        self.sent_at_ms = self.now_ms = max(self.now_ms, planned.send_at_ms)
        return planned.request

    def begins(self) -> JoinGroup | SyncGroup | Heartbeat | LeaveGroup:
        """Send the next request, and notify the member of it: the call is under way."""
        request = self.sends()
        self.membership.sent(request, self.now_ms)
        return request

    def answered(self, reply: Reply, after_ms: int = 10, jitter: float = 1.0) -> list[Event]:
        """Send the request that is due and have it answered."""
        request = self.sends()
        self.now_ms += after_ms
        self.events = self.membership.on_reply(request, reply, self.sent_at_ms, self.now_ms, jitter)
        return self.events

    def unanswered(self, after_ms: int = 100, jitter: float = 1.0) -> list[Event]:
        request = self.sends()
        self.now_ms += after_ms
        self.events = self.membership.on_failure(request, self.sent_at_ms, self.now_ms, jitter)
        return self.events

    def passes(self, ms: int) -> list[Event]:
        self.now_ms += ms
        self.events = self.membership.on_time(self.now_ms)
        return self.events

    def pause_ms(self) -> int:
        """How long until the next request is due."""
        planned = self.membership.next_request(self.now_ms)
        assert planned is not None
        return planned.send_at_ms - self.now_ms


def a_newcomer(settings: MembershipSettings = SETTINGS) -> Bench:
    return Bench(Membership(settings))


def a_newcomer_with_an_id(settings: MembershipSettings = SETTINGS) -> Bench:
    """It has yet to join with the id that it has got."""
    bench = a_newcomer(settings)
    bench.answered(MEMBER_ID_REQUIRED)
    return bench


def a_joined_follower(settings: MembershipSettings = SETTINGS) -> Bench:
    bench = a_newcomer_with_an_id(settings)
    bench.answered(joined())
    return bench


def a_joined_leader() -> Bench:
    bench = a_newcomer_with_an_id()
    bench.answered(joined(leader_id="m-1"))
    return bench


def a_stable_follower(settings: MembershipSettings = SETTINGS) -> Bench:
    bench = a_joined_follower(settings)
    bench.answered(synced())
    assert bench.membership.state is State.STABLE
    return bench


def a_revoking_follower(settings: MembershipSettings = SETTINGS) -> Bench:
    bench = a_stable_follower(settings)
    bench.answered(REBALANCING)
    assert bench.membership.state is State.REVOKING
    return bench


def a_rejoining_follower() -> Bench:
    """Its work has stopped, and its next request is a join."""
    bench = a_revoking_follower()
    bench.membership.rejoin(bench.now_ms)
    return bench


def a_holding_joiner(settings: MembershipSettings = SETTINGS) -> Bench:
    """A cooperative member in a rebalance: its next request is a join, and it keeps its share."""
    bench = a_revoking_follower(settings)
    bench.membership.rejoin(bench.now_ms, CLAIMS, holding=True)
    assert bench.membership.state is State.UNJOINED
    return bench
