"""Fences, and groups as operators see and change them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct, field

from rota.protocol.defaults import DRAIN_GRANT_MS
from rota.protocol.fencing_token import NO_TOKEN
from rota.protocol.limits import MAX_FALLS, MAX_FREEZE_MS, MAX_QUARANTINED
from rota.protocol.messages.base import (
    NO_GENERATION,
    Audited,
    Author,
    GroupRequest,
    InMembersName,
    NamespaceRequest,
    Parkable,
    Reply,
    Subject,
)
from rota.protocol.values import (
    INTERNAL,
    After,
    FencingToken,
    Filter,
    GenerationId,
    InstanceId,
    Int64,
    LongText,
    MemberId,
    NextAfter,
    PageSize,
    Reason,
    States,
    TopicOrAll,
    Unit,
    Wait,
    at_most,
    limited,
    within,
)


class VerifyFence(GroupRequest, InMembersName, frozen=True):
    """Is this fencing token, or `generation_id` with `member_id`, still that of a member of the current generation?

    A generation alone is enough only as long as no member of it was taken over.
    """

    generation_id: GenerationId = NO_GENERATION
    """The generation to check, instead of a token or beside it."""
    member_id: MemberId = ""
    """Also checked to be a member; required once a member was taken over."""
    sign: bool = False
    """Also answer with a signed token, for others to check offline.

    Needs `member_id`.
    """
    fencing_token: FencingToken | None = None
    """The fencing token to check."""
    subject: Subject = ""
    """Only with `sign`: a caller that may describe the group may check a fence, as resources do."""


class FenceReply(Reply, frozen=True):
    """`error` is `ILLEGAL_GENERATION` or `UNKNOWN_MEMBER_ID` where the fence does not hold.

    `MEMBER_ID_REQUIRED`: a member of this generation was taken over, so the request must name the member of the
    generation.
    """

    generation_id: Int64 = NO_GENERATION
    is_leader: bool = False
    is_member: bool = False
    token: str = ""
    """Signed with a key of `/.well-known/jwks.json`, if `sign` asked for it."""
    fencing_token: Int64 = NO_TOKEN
    """That of the member, or the lowest in the generation."""
    group_instance_id: Annotated[str | None, INTERNAL] = None
    """The member's, for the signed token; not on the clients' wire."""


class DescribeGroup(GroupRequest, frozen=True):
    """Read one group as it stands."""


class DescribedMember(Struct, frozen=True):
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
    session_timeout_ms: Int64
    rebalance_timeout_ms: Int64
    session_deadline_ms: Int64 | None
    joined: bool
    awaited: bool = False
    """The phase that is under way waits for it, to join or to sync."""
    metadata_decoded: dict[str, Any] | None = None
    """The metadata as its protocol type reads it, for people; null if the type is unknown or cannot read the bytes."""
    assignment_decoded: dict[str, Any] | None = None
    """The assignment as its protocol type reads it, for people; null if the type is unknown or cannot read the bytes.
    """
    fencing_token: Int64 = NO_TOKEN
    """-1 for a member that only joins the next generation."""
    protocols: tuple[str, ...] = ()
    """All that it could use, by preference."""


class Trouble(Struct, frozen=True):
    """What is wrong with a group, for people: judged by its owner. `kind` is one of `rota.protocol.troubles`."""

    kind: str
    """A code, such as `flapping`; later releases may have others."""
    text: str
    next_step: str
    """The command to type next."""
    number: Int64 = 1
    """Of what the kind counts, such as partitions."""


class DescribeReply(Reply, frozen=True):
    """A group as it stands; an unknown one is `Dead` with `GROUP_ID_NOT_FOUND`."""

    group_id: str = ""
    state: str = "Dead"
    """Empty, PreparingRebalance, CompletingRebalance, Stable or Dead."""
    generation_id: Int64 = NO_GENERATION
    protocol_type: str = ""
    protocol_name: str = ""
    leader_id: str = ""
    members: tuple[DescribedMember, ...] = ()
    pending_members: Int64 = 0
    rebalance_reason: str = ""
    rebalance_by: str = ""
    state_since_ms: Int64 = 0
    phase_deadline_ms: Int64 | None = None
    """When the phase in progress ends without the missing members."""
    rebalance_cause: str = ""
    """A code, such as `member_expired`; later releases may have others.

    A code of `rota.protocol.causes` beside `rebalance_reason`: why the group rebalanced last, or became empty.
    """
    frozen_until_ms: Int64 | None = None
    """No rebalance that could as well start later starts until then."""
    frozen_reason: str = ""
    leaving: tuple[str, ...] = ()
    """Members that have a permission to leave."""
    quarantine_after: Int64 = 0
    """So many holders of a unit must fall in a row until it is quarantined."""
    quarantined: tuple[str, ...] = ()
    """Units that assignments leave out, such as `docs/3`."""
    preempt_at_ms: Int64 | None = None
    """When the leader is asked to hand over to a member that outranks it."""
    generation_protocol_name: str = ""
    """That of the current generation, also while the group rebalances.

    The protocol of the current generation, also while the group rebalances; `protocol_name` is empty then, as in
    Kafka's code. KIP-40 has the prior one there.
    """
    troubles: tuple[Trouble, ...] = ()
    """What is wrong with the group, the worst first."""


class ListGroups(NamespaceRequest, frozen=True):
    """Groups of a namespace. States, group types ("classic") and protocol types filter; names compare without case.

    `topic`: only groups with a member that subscribes to it, by name or by a pattern.
    Pages are ordered by group id; `after` is the last id of the page before.
    """

    states: States = ()
    """Only groups in these states, in any case; several may stand between commas."""
    group_types: Filter = ()
    """Only these group types (`classic`)."""
    protocol_types: Filter = ()
    """Only these protocol types."""
    after: After = field(default="", name="page_token")
    """`next_page_token` of the page before."""
    limit: PageSize = field(default=1_000, name="page_size")
    """Most entries to answer."""
    topic: TopicOrAll = ""
    """Only groups with a member that subscribes to this topic, by name or by a pattern."""


class ListedGroup(Struct, frozen=True):
    group_id: str
    state: str
    """Empty, PreparingRebalance, CompletingRebalance, Stable or Dead."""
    protocol_type: str
    generation_id: Int64
    members: Int64
    group_type: str = "classic"
    takeovers: Int64 = 0
    """Static members that another process fenced in this generation."""
    leader_id: str = ""
    state_since_ms: Int64 = 0
    rebalance_reason: str = ""
    troubles: tuple[Trouble, ...] = ()
    """What is wrong with the group, the worst first."""


class ListReply(Reply, frozen=True):
    next_after: NextAfter = field(default=None, name="next_page_token")
    groups: tuple[ListedGroup, ...] = ()


class DeleteGroup(GroupRequest, Audited, frozen=True):
    reason: Reason = ""
    """Why, for people and the journal."""
    act: Author = None


class DeleteGroupReply(Reply, frozen=True):
    """The group is deleted."""


class RebalanceGroup(GroupRequest, Audited, frozen=True):
    """Start a rebalance, for administrators. `step_down`: with another leader, if another member joins."""

    reason: Reason = ""
    """Why, for people and the journal."""
    step_down: bool = False
    """Another member leads the next generation, if there is one."""
    act: Author = None


class RebalanceReply(Reply, frozen=True):
    """The rebalance is under way; `generation_id` is the one that ends with it."""

    generation_id: Int64 = NO_GENERATION
    """The one that the rebalance ends."""


class FreezeGroup(GroupRequest, Audited, frozen=True):
    """Start no rebalance for so long that could as well start later, for administrators; 0 ends a freeze."""

    for_ms: Annotated[int, within(0, MAX_FREEZE_MS)]
    """From now on; 0 ends a freeze."""
    reason: Reason = ""
    """Why, for people and the journal."""
    act: Author = None


class FreezeReply(Reply, frozen=True):
    """None: the group is not frozen."""

    frozen_until_ms: Int64 | None = None
    """Since 1970 at the owner; null: the group is not frozen."""


class QuarantineGroup(GroupRequest, Audited, frozen=True):
    """Set the rule of the group's quarantine, and release units from it, for administrators. None: as it is.

    `after_falls`: quarantine a unit once so many of its holders have fallen in a row; 0: none any more.
    `max_units`: so many at once. `release_after_ms`: 0: until they are released. `release`: such units as `docs/3`.
    """

    after_falls: Annotated[int, within(0, MAX_FALLS)] | None = None
    """So many holders of a unit must fall in a row; 0: none is."""
    max_units: Annotated[int, within(1, MAX_QUARANTINED)] | None = None
    """So many units may be quarantined at once."""
    release_after_ms: Annotated[int, within(0, MAX_FREEZE_MS)] | None = None
    """0: until they are released."""
    release: Annotated[tuple[LongText, ...], at_most(MAX_QUARANTINED)] = ()
    """Quarantined units, such as `docs/3`."""
    reason: Reason = ""
    """Why, for people and the journal."""
    act: Author = None


class QuarantineReply(Reply, frozen=True):
    """The rule as it stands, and the units that are quarantined."""

    after_falls: Int64 = 0
    """0: no unit is quarantined any more."""
    max_units: Int64 = 1
    release_after_ms: Int64 = 0
    """0: until they are released."""
    quarantined: tuple[str, ...] = ()
    """The quarantined units, such as `docs/3`."""


class DrainMember(GroupRequest, InMembersName, frozen=True):
    """May this member leave now, as one of at most `max_leaving` at once? By `member_id` or `group_instance_id`.

    A permission counts until the member has left, or `grant_ms` are over. It removes nothing.
    """

    member_id: MemberId = ""
    """The member that is to leave."""
    group_instance_id: InstanceId | None = None
    """Instead of `member_id`, of a static member."""
    max_leaving: Annotated[int, limited("group_max_size", Unit.NUMBER, 1)] = 1
    """So many may leave at once, this one included."""
    grant_ms: Annotated[int, within(1, MAX_FREEZE_MS)] = DRAIN_GRANT_MS
    """For how long a permission counts."""
    reason: Reason = ""
    """Why, for people and the journal."""
    subject: Subject = ""


class DrainReply(Reply, frozen=True):
    """`granted`, until `until_ms`; or `why_not`, for people. `leaving`: the members that have a permission."""

    granted: bool = False
    """Whether the member may leave now."""
    until_ms: Int64 | None = None
    """When the permission is void."""
    leaving: tuple[str, ...] = ()
    """The members that have a permission."""
    why_not: str = ""
    """Why the member may not leave now."""


class GetLeader(GroupRequest, Parkable, frozen=True):
    """Read the leader; waits up to `wait_ms` for a generation above `after_generation` to have one."""

    after_generation: GenerationId = NO_GENERATION
    """Wait for a leader of a later generation."""
    wait_ms: Wait = 0
    """How long the call may stay parked. Above 50000 counts as 50000."""


class LeaderReply(Reply, frozen=True):
    """The leader of the current generation, with its fencing token. Empty id: none now."""

    generation_id: Int64 = NO_GENERATION
    leader_id: str = ""
    """Empty: there is no leader now."""
    group_instance_id: str | None = None
    client_id: str = ""
    state: str = ""
    """Empty, PreparingRebalance, CompletingRebalance, Stable or Dead."""
    fencing_token: Int64 = NO_TOKEN
    """The leader's; -1 if there is none."""
