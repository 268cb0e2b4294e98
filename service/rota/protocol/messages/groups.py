"""Fences, and groups as operators see and change them."""

from __future__ import annotations

from typing import Any

from rota.protocol.defaults import DRAIN_GRANT_MS
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import NO_TOKEN
from rota.protocol.frozen import frozen
from rota.protocol.messages.base import (
    NO_GENERATION,
    Act,
    Audited,
    GroupRequest,
    InMembersName,
    NamespaceRequest,
    Parkable,
)


@frozen
class VerifyFence(GroupRequest, InMembersName):
    """Is this fencing token, or `generation_id` with `member_id`, still that of a member of the current generation?

    A generation alone is enough only as long as no member of it was taken over.
    """

    generation_id: int = NO_GENERATION
    member_id: str = ""
    sign: bool = False
    """Also answer with a signed token, for services that check it without asking us. Needs `member_id`."""
    fencing_token: int | None = None
    subject: str = ""
    """Only with `sign`: a caller that may describe the group may check a fence, as resources do."""


@frozen
class FenceReply:
    """`error` is `ILLEGAL_GENERATION` or `UNKNOWN_MEMBER_ID` where the fence does not hold.

    `MEMBER_ID_REQUIRED`: a member of this generation was taken over, so the request must name the member of the
    generation.
    """

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    generation_id: int = NO_GENERATION
    is_leader: bool = False
    is_member: bool = False
    token: str = ""
    fencing_token: int = NO_TOKEN
    """That of the member that the request is about; of a request about a generation, the lowest in it."""
    group_instance_id: str | None = None
    """The member's, for the signed token; not on the clients' wire."""


@frozen
class DescribeGroup(GroupRequest):
    """Read one group as it stands."""


@frozen
class DescribedMember:
    """`metadata` is empty unless the group is Stable; `assignment` is the last one.

    `session_deadline_ms`: None while parked. `awaited`: the phase under way waits for it. `…_decoded`: JSON for people;
    None where the type cannot read it.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    metadata: bytes
    assignment: bytes
    session_timeout_ms: int
    rebalance_timeout_ms: int
    session_deadline_ms: int | None
    joined: bool
    awaited: bool = False
    metadata_decoded: dict[str, Any] | None = None
    assignment_decoded: dict[str, Any] | None = None
    fencing_token: int = NO_TOKEN


@frozen
class Trouble:
    """What is wrong with a group, for people: judged by its owner. `kind` is one of `rota.protocol.troubles`."""

    kind: str
    text: str
    next_step: str
    """The command to type next."""
    number: int = 1
    """Of what the kind counts, such as partitions."""


@frozen
class DescribeReply:
    """A group as it stands; an unknown one is `Dead` with `GROUP_ID_NOT_FOUND`."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    group_id: str = ""
    state: str = "Dead"
    generation_id: int = NO_GENERATION
    protocol_type: str = ""
    protocol_name: str = ""
    leader_id: str = ""
    members: tuple[DescribedMember, ...] = ()
    pending_members: int = 0
    rebalance_reason: str = ""
    rebalance_by: str = ""
    state_since_ms: int = 0
    phase_deadline_ms: int | None = None
    """When the phase under way goes on without the missing members; None outside of a phase."""
    rebalance_cause: str = ""
    """A code of `rota.protocol.causes` beside `rebalance_reason`: why the group rebalanced last, or became empty."""
    frozen_until_ms: int | None = None
    """Until when no rebalance starts that could as well start later; None where the group is not frozen."""
    frozen_reason: str = ""
    leaving: tuple[str, ...] = ()
    """Members that have a permission to leave."""
    quarantine_after: int = 0
    """So many holders of a unit must fall in a row until it is quarantined; 0: no unit is."""
    quarantined: tuple[str, ...] = ()
    """Units that assignments leave out, such as `docs/3`."""
    preempt_at_ms: int | None = None
    """When the leader is asked to hand over to a member that outranks it; None where no member does."""
    generation_protocol_name: str = ""
    """The protocol of the current generation, also while the group rebalances; `protocol_name` is empty then, as in
    Kafka's code. KIP-40 has the prior one there.
    """
    troubles: tuple[Trouble, ...] = ()
    """The worst first."""


@frozen
class ListGroups(NamespaceRequest):
    """Groups of a namespace. States, group types ("classic") and protocol types filter; names compare without case.

    `topic`: only groups with a member that subscribes to it, by name or by a pattern.
    Pages are ordered by group id; `after` is the last id of the page before.
    """

    states: tuple[str, ...] = ()
    group_types: tuple[str, ...] = ()
    protocol_types: tuple[str, ...] = ()
    after: str = ""
    limit: int = 1_000
    topic: str = ""


@frozen
class ListedGroup:
    group_id: str
    state: str
    protocol_type: str
    generation_id: int
    members: int
    group_type: str = "classic"
    takeovers: int = 0
    """Takeovers of static members' places in this generation."""
    leader_id: str = ""
    state_since_ms: int = 0
    rebalance_reason: str = ""
    troubles: tuple[Trouble, ...] = ()
    """The worst first."""


@frozen
class ListReply:
    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    groups: tuple[ListedGroup, ...] = ()
    more: bool = False
    topic: str = ""
    """The request's. A replica that does not know this filter lists all groups, and says so by leaving it empty."""


@frozen
class DeleteGroup(GroupRequest, Audited):
    reason: str = ""
    act: Act | None = None


@frozen
class DeleteGroupReply:
    error: ErrorCode = ErrorCode.NONE
    detail: str = ""


@frozen
class RebalanceGroup(GroupRequest, Audited):
    """Start a rebalance, for administrators. `step_down`: with another leader, if another member joins."""

    reason: str = ""
    step_down: bool = False
    act: Act | None = None


@frozen
class RebalanceReply:
    """The rebalance is under way; `generation_id` is the one that ends with it."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    generation_id: int = NO_GENERATION


@frozen
class FreezeGroup(GroupRequest, Audited):
    """Start no rebalance for so long that could as well start later, for administrators; 0 ends a freeze."""

    for_ms: int = 0
    reason: str = ""
    act: Act | None = None


@frozen
class FreezeReply:
    """None: the group is not frozen."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    frozen_until_ms: int | None = None


@frozen
class QuarantineGroup(GroupRequest, Audited):
    """Set the rule of the group's quarantine, and release units from it, for administrators. None: as it is.

    `after_falls`: quarantine a unit once so many of its holders have fallen in a row; 0: none any more.
    `max_units`: so many at once. `release_after_ms`: 0: until they are released. `release`: such units as `docs/3`.
    """

    after_falls: int | None = None
    max_units: int | None = None
    release_after_ms: int | None = None
    release: tuple[str, ...] = ()
    reason: str = ""
    act: Act | None = None


@frozen
class QuarantineReply:
    """The rule as it stands, and the units that are quarantined."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    after_falls: int = 0
    max_units: int = 1
    release_after_ms: int = 0
    quarantined: tuple[str, ...] = ()


@frozen
class DrainMember(GroupRequest, InMembersName):
    """May this member leave now, as one of at most `max_leaving` at once? By `member_id` or `group_instance_id`.

    A permission counts until the member has left, or `grant_ms` are over. It removes nothing.
    """

    member_id: str = ""
    group_instance_id: str | None = None
    max_leaving: int = 1
    grant_ms: int = DRAIN_GRANT_MS
    reason: str = ""
    subject: str = ""


@frozen
class DrainReply:
    """`granted`, until `until_ms`; or `why_not`, for people. `leaving`: the members that have a permission."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    granted: bool = False
    until_ms: int | None = None
    leaving: tuple[str, ...] = ()
    why_not: str = ""


@frozen
class GetLeader(GroupRequest, Parkable):
    """Read the leader; waits up to `wait_ms` for a generation above `after_generation` to have one."""

    after_generation: int = NO_GENERATION
    wait_ms: int | None = None


@frozen
class LeaderReply:
    """The leader of the current generation, with its fencing token. Empty id: none now."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    generation_id: int = NO_GENERATION
    leader_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    state: str = ""
    fencing_token: int = NO_TOKEN
