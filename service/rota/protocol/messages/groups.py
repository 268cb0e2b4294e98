"""Fences, and groups as operators see and change them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct

from rota.protocol.defaults import DRAIN_GRANT_MS
from rota.protocol.fencing_token import NO_TOKEN
from rota.protocol.limits import MAX_FALLS, MAX_FREEZE_MS, MAX_QUARANTINED
from rota.protocol.messages.base import (
    NO_GENERATION,
    Act,
    Audited,
    GroupRequest,
    InMembersName,
    NamespaceRequest,
    Parkable,
    Reply,
)
from rota.protocol.values import (
    INTERNAL,
    REQUIRED,
    After,
    AtMost,
    FencingToken,
    Filter,
    GenerationId,
    InstanceId,
    Int64,
    LongText,
    MemberId,
    OnWire,
    PageSize,
    Reason,
    States,
    TopicOrAll,
    Wait,
    Within,
    doc,
    within,
)

_WHY = doc("Why, for people and the journal.")
_STATE = doc("Empty, PreparingRebalance, CompletingRebalance, Stable or Dead.")
_DECODED = "as its protocol type reads it, for people; null if the type is unknown or cannot read the bytes."


class VerifyFence(GroupRequest, InMembersName, frozen=True):
    """Is this fencing token, or `generation_id` with `member_id`, still that of a member of the current generation?

    A generation alone is enough only as long as no member of it was taken over.
    """

    generation_id: Annotated[
        GenerationId,
        OnWire(default=None),
        doc("The generation to check, instead of a token or beside it."),
    ] = NO_GENERATION
    member_id: Annotated[MemberId, doc("Also checked to be a member; required once a member was taken over.")] = ""
    sign: Annotated[bool, doc("Also answer with a signed token, for others to check offline.")] = False
    """Needs `member_id`."""
    fencing_token: Annotated[FencingToken | None, doc("The fencing token to check.")] = None
    subject: Annotated[str, INTERNAL] = ""
    """Only with `sign`: a caller that may describe the group may check a fence, as resources do."""


class FenceReply(Reply, frozen=True):
    """`error` is `ILLEGAL_GENERATION` or `UNKNOWN_MEMBER_ID` where the fence does not hold.

    `MEMBER_ID_REQUIRED`: a member of this generation was taken over, so the request must name the member of the
    generation.
    """

    generation_id: Int64 = NO_GENERATION
    is_leader: bool = False
    is_member: bool = False
    token: Annotated[str, doc("Signed with a key of `/.well-known/jwks.json`, if `sign` asked for it.")] = ""
    fencing_token: Annotated[Int64, doc("That of the member, or the lowest in the generation.")] = NO_TOKEN
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
    awaited: Annotated[bool, doc("The phase that is under way waits for it, to join or to sync.")] = False
    metadata_decoded: Annotated[dict[str, Any] | None, doc(f"The metadata {_DECODED}")] = None
    assignment_decoded: Annotated[dict[str, Any] | None, doc(f"The assignment {_DECODED}")] = None
    fencing_token: Annotated[Int64, doc("-1 for a member that only joins the next generation.")] = NO_TOKEN
    protocols: Annotated[tuple[str, ...], doc("All that it could use, by preference.")] = ()


class Trouble(Struct, frozen=True):
    """What is wrong with a group, for people: judged by its owner. `kind` is one of `rota.protocol.troubles`."""

    kind: Annotated[str, doc("A code, such as `flapping`; later releases may have others.")]
    text: str
    next_step: Annotated[str, doc("The command to type next.")]
    number: Annotated[Int64, doc("Of what the kind counts, such as partitions.")] = 1


_TROUBLES = doc("What is wrong with the group, the worst first.")


class DescribeReply(Reply, frozen=True):
    """A group as it stands; an unknown one is `Dead` with `GROUP_ID_NOT_FOUND`."""

    group_id: str = ""
    state: Annotated[str, _STATE] = "Dead"
    generation_id: Int64 = NO_GENERATION
    protocol_type: str = ""
    protocol_name: str = ""
    leader_id: str = ""
    members: tuple[DescribedMember, ...] = ()
    pending_members: Int64 = 0
    rebalance_reason: str = ""
    rebalance_by: str = ""
    state_since_ms: Int64 = 0
    phase_deadline_ms: Annotated[Int64 | None, doc("When the phase in progress ends without the missing members.")] = (
        None
    )
    rebalance_cause: Annotated[str, doc("A code, such as `member_expired`; later releases may have others.")] = ""
    """A code of `rota.protocol.causes` beside `rebalance_reason`: why the group rebalanced last, or became empty."""
    frozen_until_ms: Annotated[Int64 | None, doc("No rebalance that could as well start later starts until then.")] = (
        None
    )
    frozen_reason: str = ""
    leaving: Annotated[tuple[str, ...], doc("Members that have a permission to leave.")] = ()
    quarantine_after: Annotated[Int64, doc("So many holders of a unit must fall in a row until it is quarantined.")] = 0
    quarantined: Annotated[tuple[str, ...], doc("Units that assignments leave out, such as `docs/3`.")] = ()
    preempt_at_ms: Annotated[
        Int64 | None, doc("When the leader is asked to hand over to a member that outranks it.")
    ] = None
    generation_protocol_name: Annotated[
        str, doc("That of the current generation, also while the group rebalances.")
    ] = ""
    """The protocol of the current generation, also while the group rebalances; `protocol_name` is empty then, as in
    Kafka's code. KIP-40 has the prior one there.
    """
    troubles: Annotated[tuple[Trouble, ...], _TROUBLES] = ()


class ListGroups(NamespaceRequest, frozen=True):
    """Groups of a namespace. States, group types ("classic") and protocol types filter; names compare without case.

    `topic`: only groups with a member that subscribes to it, by name or by a pattern.
    Pages are ordered by group id; `after` is the last id of the page before.
    """

    states: Annotated[States, doc("Only groups in these states, in any case; several may stand between commas.")] = ()
    group_types: Annotated[Filter, doc("Only these group types (`classic`).")] = ()
    protocol_types: Annotated[Filter, doc("Only these protocol types.")] = ()
    after: After = ""
    limit: PageSize = 1_000
    topic: Annotated[
        TopicOrAll, doc("Only groups with a member that subscribes to this topic, by name or by a pattern.")
    ] = ""


class ListedGroup(Struct, frozen=True):
    group_id: str
    state: Annotated[str, _STATE]
    protocol_type: str
    generation_id: Int64
    members: Int64
    group_type: str = "classic"
    takeovers: Annotated[Int64, doc("Static members that another process fenced in this generation.")] = 0
    leader_id: str = ""
    state_since_ms: Int64 = 0
    rebalance_reason: str = ""
    troubles: Annotated[tuple[Trouble, ...], _TROUBLES] = ()


class ListReply(Reply, frozen=True):
    groups: tuple[ListedGroup, ...] = ()
    more: Annotated[bool, INTERNAL] = False
    topic: Annotated[str, doc("The request's; empty from a release that does not list by topic.")] = ""


class DeleteGroup(GroupRequest, Audited, frozen=True):
    reason: Annotated[Reason, _WHY] = ""
    act: Annotated[Act | None, INTERNAL] = None


class DeleteGroupReply(Reply, frozen=True):
    """The group is deleted."""


class RebalanceGroup(GroupRequest, Audited, frozen=True):
    """Start a rebalance, for administrators. `step_down`: with another leader, if another member joins."""

    reason: Annotated[Reason, _WHY] = ""
    step_down: Annotated[bool, doc("Another member leads the next generation, if there is one.")] = False
    act: Annotated[Act | None, INTERNAL] = None


class RebalanceReply(Reply, frozen=True):
    """The rebalance is under way; `generation_id` is the one that ends with it."""

    generation_id: Annotated[Int64, doc("The one that the rebalance ends.")] = NO_GENERATION


class FreezeGroup(GroupRequest, Audited, frozen=True):
    """Start no rebalance for so long that could as well start later, for administrators; 0 ends a freeze."""

    for_ms: Annotated[int, within(0, MAX_FREEZE_MS), OnWire(default=REQUIRED), doc("From now on; 0 ends a freeze.")] = 0
    reason: Annotated[Reason, _WHY] = ""
    act: Annotated[Act | None, INTERNAL] = None


class FreezeReply(Reply, frozen=True):
    """None: the group is not frozen."""

    frozen_until_ms: Annotated[Int64 | None, doc("Since 1970 at the owner; null: the group is not frozen.")] = None


class QuarantineGroup(GroupRequest, Audited, frozen=True):
    """Set the rule of the group's quarantine, and release units from it, for administrators. None: as it is.

    `after_falls`: quarantine a unit once so many of its holders have fallen in a row; 0: none any more.
    `max_units`: so many at once. `release_after_ms`: 0: until they are released. `release`: such units as `docs/3`.
    """

    after_falls: Annotated[
        Annotated[int, within(0, MAX_FALLS)] | None,
        doc("So many holders of a unit must fall in a row; 0: none is."),
    ] = None
    max_units: Annotated[
        Annotated[int, within(1, MAX_QUARANTINED)] | None, doc("So many units may be quarantined at once.")
    ] = None
    release_after_ms: Annotated[Annotated[int, within(0, MAX_FREEZE_MS)] | None, doc("0: until they are released.")] = (
        None
    )
    release: Annotated[tuple[LongText, ...], AtMost(MAX_QUARANTINED), doc("Quarantined units, such as `docs/3`.")] = ()
    reason: Annotated[Reason, _WHY] = ""
    act: Annotated[Act | None, INTERNAL] = None


class QuarantineReply(Reply, frozen=True):
    """The rule as it stands, and the units that are quarantined."""

    after_falls: Annotated[Int64, doc("0: no unit is quarantined any more.")] = 0
    max_units: Int64 = 1
    release_after_ms: Annotated[Int64, doc("0: until they are released.")] = 0
    quarantined: Annotated[tuple[str, ...], doc("The quarantined units, such as `docs/3`.")] = ()


class DrainMember(GroupRequest, InMembersName, frozen=True):
    """May this member leave now, as one of at most `max_leaving` at once? By `member_id` or `group_instance_id`.

    A permission counts until the member has left, or `grant_ms` are over. It removes nothing.
    """

    member_id: Annotated[MemberId, doc("The member that is to leave.")] = ""
    group_instance_id: Annotated[InstanceId | None, doc("Instead of `member_id`, of a static member.")] = None
    max_leaving: Annotated[int, Within(1, "group_max_size"), doc("So many may leave at once, this one included.")] = 1
    grant_ms: Annotated[int, within(1, MAX_FREEZE_MS), doc("For how long a permission counts.")] = DRAIN_GRANT_MS
    reason: Annotated[Reason, _WHY] = ""
    subject: Annotated[str, INTERNAL] = ""


class DrainReply(Reply, frozen=True):
    """`granted`, until `until_ms`; or `why_not`, for people. `leaving`: the members that have a permission."""

    granted: Annotated[bool, doc("Whether the member may leave now.")] = False
    until_ms: Annotated[Int64 | None, doc("When the permission is void.")] = None
    leaving: Annotated[tuple[str, ...], doc("The members that have a permission.")] = ()
    why_not: Annotated[str, doc("Why the member may not leave now.")] = ""


class GetLeader(GroupRequest, Parkable, frozen=True):
    """Read the leader; waits up to `wait_ms` for a generation above `after_generation` to have one."""

    after_generation: Annotated[GenerationId, doc("Wait for a leader of a later generation.")] = NO_GENERATION
    wait_ms: Annotated[
        Wait | None, OnWire(default=0), doc("How long the call may stay parked. Above 50000 counts as 50000.")
    ] = None


class LeaderReply(Reply, frozen=True):
    """The leader of the current generation, with its fencing token. Empty id: none now."""

    generation_id: Int64 = NO_GENERATION
    leader_id: Annotated[str, doc("Empty: there is no leader now.")] = ""
    group_instance_id: str | None = None
    client_id: str = ""
    state: Annotated[str, _STATE] = ""
    fencing_token: Annotated[Int64, doc("The leader's; -1 if there is none.")] = NO_TOKEN
