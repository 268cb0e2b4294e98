"""Joining, syncing, staying alive and leaving."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Struct

from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import NO_TOKEN
from rota.protocol.limits import SESSION_TIMEOUT_MS
from rota.protocol.messages.base import NO_GENERATION, Act, Audited, GroupRequest, InMembersName, Parkable, Reply
from rota.protocol.values import (
    INTERNAL,
    Assignment,
    AtMost,
    ClientId,
    GenerationId,
    InstanceId,
    Int64,
    LongText,
    MemberId,
    Metadata,
    Number,
    OnWire,
    Reason,
    Text,
    Via,
    Wait,
    Within,
    doc,
)

_INSTANCE = doc("Makes the member static: it survives its restarts.")
_WAIT = doc("How long the call may stay parked. Above 50000 counts as 50000.")
_TOKEN = doc("The fencing token: hand it to what you write to, which refuses lower ones.")


class AssignmentOf(Struct, frozen=True):
    """The share of one member, as the wire has it."""

    member_id: MemberId
    assignment: Assignment


Assignments = Annotated[
    tuple[tuple[str, bytes], ...],
    Via(
        Annotated[tuple[AssignmentOf, ...], AtMost("group_max_size")],
        lambda given: tuple([(each.member_id, each.assignment) for each in given]),
        lambda pairs: tuple([AssignmentOf(*pair) for pair in pairs]),
    ),
]


class Protocol(Struct, frozen=True):
    """One way to agree that a member offers, with the metadata it would bring."""

    name: Annotated[Text, doc("An assignment strategy, such as `range`.")]
    metadata: Annotated[Metadata, doc("What the leader shall know of this member, in base64.")] = b""


class JoinGroup(GroupRequest, Parkable, InMembersName, frozen=True):
    """Ask to be in the next generation. Parks until the join phase is over, at most `wait_ms`.

    `new_member_id` is what the coordinator may give to a newcomer; it is drawn by the runtime,
    because the core draws nothing at random. `host` is where the request came from, for people.
    `last_generation_id` is the highest generation that the client has held in this group, under whatever member id: the
    group's next one is higher, also where the store has lost it.
    """

    default_wait_ms: ClassVar[int] = 30_000
    protocol_type: Annotated[Text, doc("What the group is for: `consumer`, `worker`, `leader` or your own.")]
    protocols: Annotated[
        tuple[Protocol, ...], AtMost("max_protocols"), doc("Supported strategies, the preferred one first.")
    ]
    session_timeout_ms: Annotated[
        Number, OnWire(default=SESSION_TIMEOUT_MS), doc("Silence after which the member is removed.")
    ]
    rebalance_timeout_ms: Annotated[
        int,
        Within(0, "max_rebalance_timeout_ms"),
        OnWire(default=None),
        doc("Time to rejoin in a rebalance; 300000 for consumers, 60000 otherwise."),
    ]
    member_id: Annotated[MemberId, doc("Empty at first; then the one that the coordinator gave.")] = ""
    group_instance_id: Annotated[InstanceId | None, _INSTANCE] = None
    client_id: Annotated[ClientId, doc("A name for people; new member ids start with it.")] = ""
    host: Annotated[str, INTERNAL] = ""
    reason: Annotated[Reason, doc("Why the member joins, for people.")] = ""
    wait_ms: Annotated[Wait | None, OnWire(default=30_000), _WAIT] = None
    new_member_id: Annotated[str, INTERNAL] = ""
    last_generation_id: Annotated[
        GenerationId,
        doc("The highest generation that the client has held in this group: the next one is higher."),
    ] = NO_GENERATION
    subject: Annotated[str, INTERNAL] = ""


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
    members: Annotated[
        tuple[JoinedMember, ...], doc("For the leader only: all members, with the metadata of the chosen protocol.")
    ] = ()
    skip_assignment: Annotated[bool, doc("The leader is back in a Stable group: nothing to assign.")] = False
    fencing_token: Annotated[Int64, _TOKEN] = NO_TOKEN
    assignment: Annotated[
        bytes | None,
        doc("The member's share, if the coordinator has assigned the generation already: no sync is needed then."),
    ] = None


class SyncGroup(GroupRequest, Parkable, InMembersName, frozen=True):
    """Fetch this member's assignment; the leader also brings all assignments, or the reason why it has none."""

    default_wait_ms: ClassVar[int] = 30_000
    member_id: MemberId
    generation_id: GenerationId
    group_instance_id: Annotated[InstanceId | None, _INSTANCE] = None
    protocol_type: Annotated[Text | None, doc("Checked against the group's, if given.")] = None
    protocol_name: Annotated[Text | None, doc("Checked against the group's, if given.")] = None
    assignments: Annotated[Assignments, doc("The shares of all members; from the leader only.")] = ()
    leader_error: Annotated[
        Reason | None, OnWire("error"), doc("Why the leader could not assign; fails the generation.")
    ] = None
    wait_ms: Annotated[Wait | None, OnWire(default=30_000), _WAIT] = None
    subject: Annotated[str, INTERNAL] = ""


class SyncReply(Reply, frozen=True):
    """A member's assignment in a generation. `pending`: the leader has not synced yet, call again."""

    pending: Annotated[bool, INTERNAL] = False
    generation_id: Int64 = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""
    fencing_token: Annotated[Int64, _TOKEN] = NO_TOKEN
    """This member's, for as long as it has this share: a resource rejects lower ones (`protocol/fencing_token.py`)."""


class Heartbeat(GroupRequest, Parkable, InMembersName, frozen=True):
    """A heartbeat. With `wait_ms` it parks and answers the moment the group leaves the generation."""

    member_id: MemberId
    generation_id: GenerationId
    group_instance_id: Annotated[InstanceId | None, _INSTANCE] = None
    wait_ms: Annotated[
        Wait | None,
        OnWire(default=0),
        doc("Above 0 the call parks and answers the moment the group leaves the generation."),
    ] = None
    subject: Annotated[str, INTERNAL] = ""


class HeartbeatReply(Reply, frozen=True):
    """The group's state. A `generation_id` above the member's own means: sync again (resync)."""

    generation_id: Int64 = NO_GENERATION
    state: str = ""
    entered: Annotated[JoinReply | None, INTERNAL] = None
    """With `REBALANCE_IN_PROGRESS`: the answer to the join that is asked for, where an election took the member along.
    In memory and on session streams only.
    """
    waited_ms: Annotated[
        Int64,
        doc(
            "For so long this call was parked when the session was renewed again: the session counts from then, and "
            "not from when the call was sent."
        ),
    ] = 0


class MemberHeartbeat(Struct, frozen=True):
    """One member's heartbeat among several."""

    member_id: MemberId
    generation_id: GenerationId
    group_instance_id: Annotated[InstanceId | None, _INSTANCE] = None


class HeartbeatMany(GroupRequest, InMembersName, frozen=True):
    """Heartbeats of several members of one group, from one process. Never parks."""

    members: Annotated[tuple[MemberHeartbeat, ...], AtMost("group_max_size"), doc("Several at once.")]
    subject: Annotated[str, INTERNAL] = ""


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


class LeavingMember(Struct, frozen=True):
    """A member that leaves: by member id, or by instance id alone (an administrator's way).

    `silent_for_ms`: only if the member was not seen for that long, and `INVALID_REQUEST` if it was. Set
    by a transport that lost its connection to the member; not on the wire.
    `failed_unit`: the unit that its work failed on, such as `docs/3`; empty where it leaves in order.
    """

    member_id: MemberId = ""
    group_instance_id: Annotated[InstanceId | None, doc("Enough alone, for administrators.")] = None
    reason: Annotated[Reason, doc("For people and the journal.")] = ""
    silent_for_ms: Annotated[Int64 | None, INTERNAL] = None
    failed_unit: Annotated[LongText, doc("The unit that its work failed on, such as `docs/3`; empty: in order.")] = ""


class LeaveGroup(GroupRequest, Audited, InMembersName, frozen=True):
    """Leave at once. `by_admin` marks a removal by an administrator (RemoveMembers)."""

    members: Annotated[tuple[LeavingMember, ...], AtMost("group_max_size"), doc("The leaving members.")]
    by_admin: Annotated[bool, INTERNAL] = False
    act: Annotated[Act | None, INTERNAL] = None
    subject: Annotated[str, INTERNAL] = ""


class LeftMember(Struct, frozen=True):
    member_id: str
    group_instance_id: str | None
    error: ErrorCode


class LeaveReply(Reply, frozen=True):
    members: tuple[LeftMember, ...] = ()
