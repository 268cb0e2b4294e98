"""Facts, as the core decides them and the journal keeps them. `state.py` folds them into a group.

`kind` is the journal's name for a record (architecture.md §3). Fields hold what a reader of the journal
needs to rebuild the state and to say why it changed; the journal line around it adds time, group and generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

from rota.core.group.rows import MemberImage
from rota.protocol.causes import Cause


@dataclass(frozen=True, slots=True)
class RebalanceStarted:
    """A join phase began. `by` is the member that caused it, empty if none did."""

    kind: ClassVar[str] = "rebalance_started"
    reason: str
    by: str
    from_state: str
    cause: str = ""
    """A code of `rota.protocol.causes`, as in each record that has this field."""


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A newcomer is in the join phase; settled when the generation completes."""

    kind: ClassVar[str] = "member_joined"
    member: MemberImage
    protocol_type: str
    reason: str


@dataclass(frozen=True, slots=True)
class MemberUpdated:
    """A member rejoined with other metadata or timeouts; `settle` where it holds without a new generation."""

    kind: ClassVar[str] = "member_updated"
    member: MemberImage
    settle: bool
    reason: str


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """It asked to leave."""

    kind: ClassVar[str] = "member_left"
    member_id: str
    group_instance_id: str | None
    reason: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class MemberExpired:
    """It did not heartbeat, rejoin or sync in time; `reason` says which."""

    kind: ClassVar[str] = "member_expired"
    member_id: str
    group_instance_id: str | None
    reason: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class MemberRemoved:
    """It was removed: by an administrator, or because the group was full."""

    kind: ClassVar[str] = "member_removed"
    member_id: str
    group_instance_id: str | None
    reason: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class MemberFenced:
    """A static member came back: `member_id` is void, `new_member_id` stands in its place."""

    kind: ClassVar[str] = "member_fenced"
    member_id: str
    new_member_id: str
    group_instance_id: str
    reason: str
    takeover: int = 0
    """The successor's number among the takeovers of this generation; 0 if its predecessor was in no generation."""


@dataclass(frozen=True, slots=True)
class GenerationCompleted:
    """The join phase is over: these members, in this order, are the generation."""

    kind: ClassVar[str] = "generation_completed"
    generation_id: int
    protocol_type: str
    protocol_name: str
    leader_id: str
    member_ids: tuple[str, ...]
    started_at_ms: int
    reason: str
    by: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """The new generation has another leader than the previous one; the former id is empty if it was removed.

    Says why; changes nothing by itself.
    """

    kind: ClassVar[str] = "leader_changed"
    former_leader_id: str
    leader_id: str
    reason: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class AssignmentSynced:
    """The leader's assignment for a generation.

    `resync`: it opened the generation without a join phase. Then it has a cause, and a member that caused it unless the
    server assigned.
    """

    kind: ClassVar[str] = "assignment_synced"
    generation_id: int
    leader_id: str
    assignments: tuple[tuple[str, bytes], ...]
    resync: bool
    reason: str
    cause: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class AssignmentFailed:
    """The leader could not assign; the generation is over before it began."""

    kind: ClassVar[str] = "assignment_failed"
    generation_id: int
    leader_id: str
    reason: str


class CommittedOffset(NamedTuple):
    topic: str
    partition: int
    offset: int
    leader_epoch: int | None
    metadata: str
    committed_at_ms: int | None = None
    """Where that was not when the record was written: the store's clock, of what a user's transaction committed."""
    expires_at_ms: int | None = None
    """Where the commit named a retention: when that ends."""


IN_USERS_TRANSACTION = "in a transaction of the user's"
"""The reason of a commit that the owner takes in after it was made: its member may have left meanwhile."""


@dataclass(frozen=True, slots=True)
class OffsetsCommitted:
    kind: ClassVar[str] = "offsets_committed"
    member_id: str
    offsets: tuple[CommittedOffset, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class OffsetsDeleted:
    """`reason` is "request", "expired" or "topic deleted"."""

    kind: ClassVar[str] = "offsets_deleted"
    partitions: tuple[tuple[str, int], ...]
    reason: str


@dataclass(frozen=True, slots=True)
class RequestFenced:
    """A request of a replaced or removed member was rejected. Changes nothing by itself.

    Written once for a member, operation and generation, so that a zombie cannot fill the journal.
    """

    kind: ClassVar[str] = "request_fenced"
    member_id: str
    group_instance_id: str | None
    operation: str
    error: str
    request_generation_id: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SessionStats:
    """How regularly heartbeats of members came; changes nothing by itself. Heartbeats have no lines of their own.

    For each member its id, client id and session timeout, since when its gaps were counted, the longest of them, and
    how many fell into each class (`records.py`). What an owner has counted and not yet written is lost with it.
    """

    kind: ClassVar[str] = "session_stats"
    members: tuple[tuple[str, str, int, int, int, tuple[tuple[int, int], ...]], ...]


@dataclass(frozen=True, slots=True)
class GenerationRaised:
    """The group's number jumps to one that no member ever held: its store, or a part of it, went back to an earlier
    state, in which later generations had not been granted yet. The next generation follows on it.

    `lost` says what the owner remembers and the store has lost: `(what, before, after)`, not all where it is much.
    """

    kind: ClassVar[str] = "generation_raised"
    generation_id: int
    former_generation_id: int
    lost: tuple[tuple[str, int, int], ...]
    reason: str


@dataclass(frozen=True, slots=True)
class GroupFrozen:
    """Until then no rebalance starts that could as well start later."""

    kind: ClassVar[str] = "group_frozen"
    until_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class GroupUnfrozen:
    """An administrator ended the freeze before its time."""

    kind: ClassVar[str] = "group_unfrozen"
    reason: str


@dataclass(frozen=True, slots=True)
class LeaveGranted:
    """A member may leave, as one of at most so many at once, until then."""

    kind: ClassVar[str] = "leave_granted"
    member_id: str
    until_ms: int
    max_leaving: int
    reason: str


@dataclass(frozen=True, slots=True)
class QuarantineChanged:
    """An administrator set the rule of the group's quarantine; 0 falls end it, and acquit all suspects."""

    kind: ClassVar[str] = "quarantine_changed"
    after_falls: int
    max_units: int
    release_after_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class UnitsSuspected:
    """All suspects from here on, each with its number of falls in a row, and the time of the last one.

    `member_id` is the holder that fell last, or that survived one.
    """

    kind: ClassVar[str] = "units_suspected"
    suspects: tuple[tuple[str, int, int], ...]
    member_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class UnitsQuarantined:
    """Assignments leave these units out, until then; 0: until an administrator releases them. `cause` says how the last
    holder fell.
    """

    kind: ClassVar[str] = "units_quarantined"
    units: tuple[str, ...]
    until_ms: int
    reason: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class UnitsReleased:
    """Assignments have these units again."""

    kind: ClassVar[str] = "units_released"
    units: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class GroupEmptied:
    """The last member is gone. `by` is that member, empty where the sentence counts several."""

    kind: ClassVar[str] = "group_emptied"
    generation_id: int
    reason: str
    cause: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class GroupDeleted:
    """Its offsets are gone; its generation stays behind, for the token must never go back."""

    kind: ClassVar[str] = "group_deleted"
    generation_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """A topic of the namespace was put (`partitions` > 0) or deleted (0).

    Every shard records a deletion, because each has groups with progress that is of the deleted topic (ADR 107).
    """

    kind: ClassVar[str] = "topic_changed"
    topic: str
    partitions: int
    attributes: tuple[tuple[str, str], ...]
    reason: str = ""
    revision: int = 0
    """Counts the changes of the namespace's topics."""


@dataclass(frozen=True, slots=True)
class Administered:
    """An administrator did what the lines before this one record; changes nothing by itself.

    `target` is the member or topic that it was done to, or a token's name and id; it is empty where that is the group.
    `reason` is the administrator's note, `origin` the address or machine that they were at.
    """

    kind: ClassVar[str] = "administered"
    operation: str
    actor: str
    target: str
    reason: str = ""
    origin: str = ""


@dataclass(frozen=True, slots=True)
class ShardAcquired:
    """A new owner loaded the shard: every join phase that was under way is forgotten."""

    kind: ClassVar[str] = "shard_acquired"
    replica_id: str
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class ShardReleased:
    """An owner let the shard go in order: its last line. Where there is none, it died, or its lease was over."""

    kind: ClassVar[str] = "shard_released"
    replica_id: str
    epoch: int
    reason: str


MemberGone = MemberLeft | MemberExpired | MemberRemoved
MemberEnd = MemberGone | MemberFenced
"""Those of `rota.protocol.causes.MEMBER_ENDS`."""
Record = (
    RebalanceStarted
    | MemberJoined
    | MemberUpdated
    | MemberLeft
    | MemberExpired
    | MemberRemoved
    | MemberFenced
    | GenerationCompleted
    | LeaderChanged
    | AssignmentSynced
    | AssignmentFailed
    | OffsetsCommitted
    | OffsetsDeleted
    | RequestFenced
    | SessionStats
    | GenerationRaised
    | GroupFrozen
    | GroupUnfrozen
    | LeaveGranted
    | QuarantineChanged
    | UnitsSuspected
    | UnitsQuarantined
    | UnitsReleased
    | GroupEmptied
    | GroupDeleted
    | TopicChanged
    | Administered
    | ShardAcquired
    | ShardReleased
)


class Entry(NamedTuple):
    """A record with its place: what one line of the journal says. Shard records have empty names."""

    namespace: str
    group_id: str
    generation_id: int
    at_ms: int
    record: Record


UNSETTLED = frozenset({MemberJoined.kind, MemberUpdated.kind, RebalanceStarted.kind})
"""The kinds of which some do not settle."""


def settles(entry: Entry) -> bool:
    """Whether this has to be durable before anything is answered that was decided after it.

    A new owner forgets a join phase under way (see `state.py`), so nothing waits for the records of one. The start of
    one that an administrator has asked for does settle: that call is answered with it.
    """
    record = entry.record
    if record.kind not in UNSETTLED:
        return True
    match record:
        case MemberUpdated():
            return record.settle
        case RebalanceStarted():
            return record.cause in (Cause.REQUESTED, Cause.STEP_DOWN)
        case _:
            return False


# --- triggers of rebalances -----------------------------------------------------------------------


class Trigger(NamedTuple):
    """`cause` is a code of `rota.protocol.causes`; `by` is the member that caused it, empty where no single one did."""

    cause: str
    reason: str
    by: str = ""


def trigger_of(gone: MemberGone) -> Trigger:
    """The trigger of a group that is empty because its last member went as `gone` says."""
    match gone:
        case MemberExpired(member_id=member_id, reason=silent):
            return Trigger(gone.cause, f"member {member_id} expired: {silent}", member_id)
        case MemberLeft(member_id=member_id):
            return Trigger(gone.cause, f"member {member_id} left", member_id)
        case MemberRemoved(member_id=member_id):
            return Trigger(gone.cause, f"member {member_id} was removed", member_id)


# --- classes of gaps between two heartbeats -------------------------------------------------------

# Four to each doubling, so that sums of histograms stay histograms.


CLASSES = 96
"""The last one begins at about nine hours."""


class GapCount:
    """The gaps of one member since `since_ms`: how many by class. `sessions.renew_sessions` counts them.

    Nearly all gaps of a member are of one class: a dictionary for that would take three times as much as all the rest.
    """

    __slots__ = ("_others", "in_a_row", "longest_ms", "number", "since_ms")

    def __init__(self, since_ms: int, number: int) -> None:
        """`number` is the class of the first gap, which is not counted yet."""
        self.since_ms = since_ms
        self.longest_ms = 0
        self.number = number
        """The class of the last gap."""
        self.in_a_row = 0
        """How many of that class came one after the other."""
        self._others: dict[int, int] | None = None
        """Those before them."""

    def begin_row(self, number: int) -> None:
        """Count a gap that is of another class than the last one."""
        if self._others is None:
            self._others = {}
        self._others[self.number] = self._others.get(self.number, 0) + self.in_a_row
        self.number, self.in_a_row = number, 1

    @property
    def classes(self) -> dict[int, int]:
        """How many gaps there were of each class."""
        classes = dict(self._others or {})
        classes[self.number] = classes.get(self.number, 0) + self.in_a_row
        return classes


@lru_cache(maxsize=10_000)
def gap_class(gap_ms: int) -> int:
    """Which class a gap belongs to. Up to 3 ms each has its own; from there a class is a quarter of a doubling."""
    if gap_ms < 4:
        return max(0, gap_ms)
    doublings = gap_ms.bit_length() - 3
    return min(CLASSES - 1, 4 * doublings + (gap_ms >> doublings))


def class_end_ms(number: int) -> int:
    """The longest gap that the class holds."""
    if number < 4:
        return number
    doublings, quarter = divmod(number, 4)
    return ((quarter + 5) << (doublings - 1)) - 1


def quantile_ms(classes: dict[int, int], share: float) -> int | None:
    """A gap that `share` of all gaps do not exceed: the end of its class; None without gaps."""
    wanted = sum(classes.values()) * share
    seen = 0
    for number in sorted(classes):
        seen += classes[number]
        if seen >= wanted and seen:
            return class_end_ms(number)
    return None
