"""Joining, syncing, staying alive and leaving."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct, field
from msgspec.structs import force_setattr

from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import NO_TOKEN
from rota.protocol.limits import CONSUMER_REBALANCE_TIMEOUT_MS, REBALANCE_TIMEOUT_MS, SESSION_TIMEOUT_MS
from rota.protocol.messages.base import (
    NO_GENERATION,
    Audited,
    Author,
    GroupRequest,
    InMembersName,
    Parkable,
    Part,
    Reply,
    Subject,
)
from rota.protocol.values import (
    INTERNAL,
    Assignment,
    ClientId,
    GenerationId,
    InstanceId,
    Int64,
    LongText,
    MemberId,
    Metadata,
    Number,
    OrNull,
    Reason,
    Text,
    Unit,
    Wait,
    limited,
    via,
)

_BY_TYPE: Any = None
"""A join without a rebalance timeout gets the one of its protocol type."""


class AssignmentOf(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The share of one member, as the wire has it."""

    member_id: MemberId
    assignment: Assignment


Assignments = Annotated[
    tuple[tuple[str, bytes], ...],
    via(
        Annotated[tuple[AssignmentOf, ...], limited("group_max_size")],
        lambda given: tuple([(each.member_id, each.assignment) for each in given]),
        lambda pairs: tuple([AssignmentOf(*pair) for pair in pairs]),
    ),
]


class Protocol(Part, frozen=True):
    """One way to agree that a member offers, with the metadata it would bring."""

    name: Text
    """An assignment strategy, such as `range`."""
    metadata: OrNull[Metadata] = b""
    """What the leader shall know of this member, in base64."""


class JoinGroup(GroupRequest, Parkable, InMembersName, frozen=True):
    """Ask to be in the next generation. Parks until the join phase is over, at most `wait_ms`.

    `new_member_id` is what the coordinator may give to a newcomer; it is drawn by the runtime,
    because the core draws nothing at random. `host` is where the request came from, for people.
    `last_generation_id` is the highest generation that the client has held in this group, under whatever member id: the
    group's next one is higher, also where the store has lost it.
    """

    protocol_type: Text
    """What the group is for: `consumer`, `worker`, `leader` or your own."""
    protocols: Annotated[tuple[Protocol, ...], limited("max_protocols")]
    """Supported strategies, the preferred one first."""
    session_timeout_ms: Number = SESSION_TIMEOUT_MS
    """Silence after which the member is removed."""
    rebalance_timeout_ms: OrNull[Annotated[int, limited("max_rebalance_timeout_ms", Unit.NUMBER)]] = _BY_TYPE
    """Time to rejoin in a rebalance; 300000 for consumers, 60000 otherwise."""
    member_id: MemberId = ""
    """Empty at first; then the one that the coordinator gave."""
    group_instance_id: InstanceId | None = None
    """Makes the member static: it survives its restarts."""
    client_id: ClientId = ""
    """A name for people; new member ids start with it."""
    host: Annotated[str, INTERNAL] = ""
    reason: Reason = ""
    """Why the member joins, for people."""
    wait_ms: Wait = 30_000
    """How long the call may stay parked. Above 50000 counts as 50000."""
    new_member_id: Annotated[str, INTERNAL] = ""
    last_generation_id: GenerationId = NO_GENERATION
    """The highest generation that the client has held in this group: the next one is higher."""
    subject: Subject = ""

    def __post_init__(self) -> None:
        if self.rebalance_timeout_ms is _BY_TYPE:
            force_setattr(self, "rebalance_timeout_ms", default_rebalance_timeout_ms(self.protocol_type))


def default_rebalance_timeout_ms(protocol_type: str) -> int:
    """Kafka's consumers get five minutes to rejoin, all others one."""
    return CONSUMER_REBALANCE_TIMEOUT_MS if protocol_type == "consumer" else REBALANCE_TIMEOUT_MS


class JoinedMember(Struct, frozen=True):
    """One line of the list that the leader gets: the metadata is that of the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinReply(Reply, frozen=True):
    """The generation a member is in. `pending`: the join phase goes on, call again with `member_id`."""

    pending: Annotated[bool, INTERNAL] = False
    member_id: str = ""
    generation_id: Int64 = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    """For the leader only: all members, with the metadata of the chosen protocol."""
    skip_assignment: bool = False
    """The leader is back in a Stable group: nothing to assign."""
    fencing_token: Int64 = NO_TOKEN
    """The fencing token: hand it to what you write to, which refuses lower ones."""
    assignment: bytes | None = None
    """The member's share, if the coordinator has assigned the generation already: no sync is needed then."""


class SyncGroup(GroupRequest, Parkable, InMembersName, frozen=True):
    """Fetch this member's assignment; the leader also brings all assignments, or the reason why it has none."""

    member_id: MemberId
    generation_id: GenerationId
    group_instance_id: InstanceId | None = None
    """Makes the member static: it survives its restarts."""
    protocol_type: Text | None = None
    """Checked against the group's, if given."""
    protocol_name: Text | None = None
    """Checked against the group's, if given."""
    assignments: Assignments = ()
    """The shares of all members; from the leader only."""
    leader_error: Reason | None = field(default=None, name="error")
    """Why the leader could not assign; fails the generation."""
    wait_ms: Wait = 30_000
    """How long the call may stay parked. Above 50000 counts as 50000."""
    subject: Subject = ""


class SyncReply(Reply, frozen=True):
    """A member's assignment in a generation. `pending`: the leader has not synced yet, call again."""

    pending: Annotated[bool, INTERNAL] = False
    generation_id: Int64 = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""
    fencing_token: Int64 = NO_TOKEN
    """The fencing token: hand it to what you write to, which refuses lower ones.

    This member's, for as long as it has this share: a resource rejects lower ones (`protocol/fencing_token.py`).
    """


class Heartbeat(GroupRequest, Parkable, InMembersName, frozen=True):
    """A heartbeat. With `wait_ms` it parks and answers the moment the group leaves the generation."""

    member_id: MemberId
    generation_id: GenerationId
    group_instance_id: InstanceId | None = None
    """Makes the member static: it survives its restarts."""
    wait_ms: Wait = 0
    """Above 0 the call parks and answers the moment the group leaves the generation."""
    subject: Subject = ""


class HeartbeatReply(Reply, frozen=True):
    """The group's state. A `generation_id` above the member's own means: sync again (resync)."""

    generation_id: Int64 = NO_GENERATION
    state: str = ""
    entered: Annotated[JoinReply | None, INTERNAL] = None
    """With `REBALANCE_IN_PROGRESS`: the answer to the join that is asked for, where an election took the member along.
    In memory and on session streams only.
    """
    waited_ms: Int64 = 0
    """For so long this call was parked when the session was renewed again: the session counts from then, and not from
    when the call was sent.
    """


class MemberHeartbeat(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One member's heartbeat among several."""

    member_id: MemberId
    generation_id: GenerationId
    group_instance_id: InstanceId | None = None
    """Makes the member static: it survives its restarts."""


class HeartbeatMany(GroupRequest, InMembersName, frozen=True):
    """Heartbeats of several members of one group, from one process. Never parks."""

    members: Annotated[tuple[MemberHeartbeat, ...], limited("group_max_size")]
    """Several at once."""
    subject: Subject = ""


class HeartbeatError(Struct, frozen=True):
    """The error of one heartbeat among several."""

    member_id: str
    error: ErrorCode
    detail: str = ""


class HeartbeatManyReply(Reply, frozen=True):
    """The group's state. Members that are not in `errors` live."""

    generation_id: Int64 = NO_GENERATION
    state: str = ""
    errors: tuple[HeartbeatError, ...] = ()


class LeavingMember(Part, frozen=True):
    """A member that leaves: by member id, or by instance id alone (an administrator's way).

    `failed_unit`: the unit that its work failed on, such as `docs/3`; empty where it leaves in order.
    """

    member_id: OrNull[MemberId] = ""
    group_instance_id: InstanceId | None = None
    """Enough alone, for administrators."""
    reason: OrNull[Reason] = ""
    """For people and the journal."""
    failed_unit: OrNull[LongText] = ""
    """The unit that its work failed on, such as `docs/3`; empty: in order."""


class LeaveGroup(GroupRequest, Audited, InMembersName, frozen=True):
    """Leave at once. `by_admin` marks a removal by an administrator (RemoveMembers).

    `silent_for_ms`: only members that were not seen for that long, and `INVALID_REQUEST` for the others. Set by a
    transport that lost its connection to the members.
    """

    members: Annotated[tuple[LeavingMember, ...], limited("group_max_size")]
    """The leaving members."""
    by_admin: Annotated[bool, INTERNAL] = False
    act: Author = None
    subject: Subject = ""
    silent_for_ms: Annotated[Int64 | None, INTERNAL] = None


class LeftMember(Struct, frozen=True):
    member_id: str
    group_instance_id: str | None
    error: ErrorCode


class LeaveReply(Reply, frozen=True):
    members: tuple[LeftMember, ...] = ()
