"""Joining, syncing, staying alive and leaving."""

from __future__ import annotations

from typing import ClassVar

from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import NO_TOKEN
from rota.protocol.frozen import frozen
from rota.protocol.messages.base import NO_GENERATION, Act, Audited, GroupRequest, InMembersName, Parkable


@frozen
class Protocol:
    """One way to agree that a member offers, with the metadata it would bring."""

    name: str
    metadata: bytes = b""


@frozen
class JoinGroup(GroupRequest, Parkable, InMembersName):
    """Ask to be in the next generation. Parks until the join phase is over, at most `wait_ms`.

    `new_member_id` is what the coordinator may give to a newcomer; it is drawn by the runtime,
    because the core draws nothing at random. `host` is where the request came from, for people.
    `last_generation_id` is the highest generation that the client has held in this group, under whatever member id: the
    group's next one is higher, also where the store has lost it.
    """

    default_wait_ms: ClassVar[int] = 30_000
    protocol_type: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    host: str = ""
    reason: str = ""
    wait_ms: int | None = None
    new_member_id: str = ""
    last_generation_id: int = NO_GENERATION
    subject: str = ""


@frozen
class JoinedMember:
    """One line of the list that the leader gets: the metadata is that of the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@frozen
class JoinReply:
    """The generation a member is in. `pending`: the join phase goes on, call again with `member_id`."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    pending: bool = False
    member_id: str = ""
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False
    fencing_token: int = NO_TOKEN
    assignment: bytes | None = None
    """The member's share, where the coordinator has assigned the generation already: no sync is needed then."""


@frozen
class SyncGroup(GroupRequest, Parkable, InMembersName):
    """Fetch this member's assignment; the leader also brings all assignments, or the reason why it has none."""

    default_wait_ms: ClassVar[int] = 30_000
    member_id: str
    generation_id: int
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()
    leader_error: str | None = None
    wait_ms: int | None = None
    subject: str = ""


@frozen
class SyncReply:
    """A member's assignment in a generation. `pending`: the leader has not synced yet, call again."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    pending: bool = False
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""
    fencing_token: int = NO_TOKEN
    """This member's, for as long as it has this share: a resource rejects lower ones (`protocol/fencing_token.py`)."""


@frozen
class Heartbeat(GroupRequest, Parkable, InMembersName):
    """A heartbeat. With `wait_ms` it parks and answers the moment the group leaves the generation."""

    member_id: str
    generation_id: int
    group_instance_id: str | None = None
    wait_ms: int | None = None
    subject: str = ""


@frozen
class HeartbeatReply:
    """The group's state. A `generation_id` above the member's own means: sync again (resync)."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    generation_id: int = NO_GENERATION
    state: str = ""
    entered: JoinReply | None = None
    """With `REBALANCE_IN_PROGRESS`: the answer to the join that is asked for, where an election took the member along.
    In memory and on session streams only.
    """
    waited_ms: int = 0
    """For so long the coordinator had parked this call, or less, when it renewed the session once more."""


@frozen
class MemberHeartbeat:
    """One member's heartbeat among several."""

    member_id: str
    generation_id: int
    group_instance_id: str | None = None


@frozen
class HeartbeatMany(GroupRequest, InMembersName):
    """Heartbeats of several members of one group, from one process. Never parks."""

    members: tuple[MemberHeartbeat, ...]
    subject: str = ""


@frozen
class HeartbeatError:
    """The error of one heartbeat among several."""

    member_id: str
    error: ErrorCode
    detail: str = ""


@frozen
class HeartbeatManyReply:
    """The group's state. Members that are not in `errors` live."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    generation_id: int = NO_GENERATION
    state: str = ""
    errors: tuple[HeartbeatError, ...] = ()


@frozen
class LeavingMember:
    """A member that leaves: by member id, or by instance id alone (an administrator's way).

    `silent_for_ms`: only if the member was not seen for that long, and `INVALID_REQUEST` if it was. Set
    by a transport that lost its connection to the member; not on the wire.
    `failed_unit`: the unit that its work failed on, such as `docs/3`; empty where it leaves in order.
    """

    member_id: str = ""
    group_instance_id: str | None = None
    reason: str = ""
    silent_for_ms: int | None = None
    failed_unit: str = ""


@frozen
class LeaveGroup(GroupRequest, Audited, InMembersName):
    """Leave at once. `by_admin` marks a removal by an administrator (RemoveMembers)."""

    members: tuple[LeavingMember, ...]
    by_admin: bool = False
    act: Act | None = None
    subject: str = ""


@frozen
class LeftMember:
    member_id: str
    group_instance_id: str | None
    error: ErrorCode


@frozen
class LeaveReply:
    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    members: tuple[LeftMember, ...] = ()
