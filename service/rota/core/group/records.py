"""Facts, as the core decides them and the journal keeps them. `state.py` folds them into a group.

Fields hold what a reader of the journal needs to rebuild the state and to say why it changed; the journal line around
them adds time, group and generation.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, get_args

import msgspec
from msgspec import Struct

from rota.core.group.rows import MemberImage
from rota.protocol.causes import Cause
from rota.protocol.limits import MAX_SAFE_INTEGER


class Fact(Struct, frozen=True, forbid_unknown_fields=True):
    """A record of the journal. Its kind there is the name of its class: `member_joined` for `MemberJoined`."""

    kind: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        """Name the kind."""
        super().__init_subclass__(**options)
        cls.kind = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


class RebalanceStarted(Fact, frozen=True):
    """A join phase began. `by` is the member that caused it, empty if none did."""

    reason: str
    by: str
    from_state: str
    cause: str = ""
    """A code of `rota.protocol.causes`, as in each record that has this field."""


class MemberJoined(Fact, frozen=True):
    """A newcomer is in the join phase; settled when the generation completes."""

    member: MemberImage
    protocol_type: str
    reason: str


class MemberUpdated(Fact, frozen=True):
    """A member rejoined with other metadata or timeouts; `settle` where it holds without a new generation."""

    member: MemberImage
    settle: bool
    reason: str


class MemberLeft(Fact, frozen=True):
    """It asked to leave."""

    member_id: str
    group_instance_id: str | None
    reason: str
    cause: str = ""


class MemberExpired(Fact, frozen=True):
    """It did not heartbeat, rejoin or sync in time; `reason` says which."""

    member_id: str
    group_instance_id: str | None
    reason: str
    cause: str = ""


class MemberRemoved(Fact, frozen=True):
    """It was removed: by an administrator, or because the group was full."""

    member_id: str
    group_instance_id: str | None
    reason: str
    cause: str = ""


class MemberFenced(Fact, frozen=True):
    """A static member came back: `member_id` is void, `new_member_id` stands in its place."""

    member_id: str
    new_member_id: str
    group_instance_id: str
    reason: str
    takeover: int = 0
    """The successor's number among the takeovers of this generation; 0 if its predecessor was in no generation."""


class GenerationCompleted(Fact, frozen=True):
    """The join phase is over: these members, in this order, are the generation."""

    generation_id: int
    protocol_type: str
    protocol_name: str
    leader_id: str
    member_ids: tuple[str, ...]
    started_at_ms: int
    reason: str
    by: str
    cause: str = ""


class LeaderChanged(Fact, frozen=True):
    """The new generation has another leader than the previous one; the former id is empty if it was removed.

    Says why; changes nothing by itself.
    """

    former_leader_id: str
    leader_id: str
    reason: str
    cause: str = ""


class AssignmentSynced(Fact, frozen=True):
    """The leader's assignment for a generation.

    `resync`: it opened the generation without a join phase. Then it has a cause, and a member that caused it unless the
    server assigned.
    """

    generation_id: int
    leader_id: str
    assignments: tuple[tuple[str, bytes], ...]
    resync: bool
    reason: str
    cause: str = ""
    by: str = ""


class AssignmentFailed(Fact, frozen=True):
    """The leader could not assign; the generation is over before it began."""

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


_PLACE_AND_OFFSET = 5
"""So many values a committed offset has at least; the others are left out of the journal if they are None."""


class OffsetsCommitted(Fact, frozen=True):
    member_id: str
    offsets: tuple[CommittedOffset, ...]
    reason: str = ""


class OffsetsDeleted(Fact, frozen=True):
    """`reason` is "request", "expired" or "topic deleted"."""

    partitions: tuple[tuple[str, int], ...]
    reason: str


class RequestFenced(Fact, frozen=True):
    """A request of a replaced or removed member was rejected. Changes nothing by itself.

    Written once for a member, operation and generation, so that a zombie cannot fill the journal.
    """

    member_id: str
    group_instance_id: str | None
    operation: str
    error: str
    request_generation_id: int
    reason: str = ""


class SessionStats(Fact, frozen=True):
    """How regularly heartbeats of members came; changes nothing by itself. Heartbeats have no lines of their own.

    For each member its id, client id and session timeout, since when its gaps were counted, the longest of them, and
    how many fell into each class (`records.py`). What an owner has counted and not yet written is lost with it.
    """

    members: tuple[tuple[str, str, int, int, int, tuple[tuple[int, int], ...]], ...]


class GenerationRaised(Fact, frozen=True):
    """The group's number jumps to one that no member ever held: its store, or a part of it, went back to an earlier
    state, in which later generations had not been granted yet. The next generation follows on it.

    `lost` says what the owner remembers and the store has lost: `(what, before, after)`, not all where it is much.
    """

    generation_id: int
    former_generation_id: int
    lost: tuple[tuple[str, int, int], ...]
    reason: str


class GroupFrozen(Fact, frozen=True):
    """Until then no rebalance starts that could as well start later."""

    until_ms: int
    reason: str


class GroupUnfrozen(Fact, frozen=True):
    """An administrator ended the freeze before its time."""

    reason: str


class LeaveGranted(Fact, frozen=True):
    """A member may leave, as one of at most so many at once, until then."""

    member_id: str
    until_ms: int
    max_leaving: int
    reason: str


class QuarantineChanged(Fact, frozen=True):
    """An administrator set the rule of the group's quarantine; 0 falls end it, and acquit all suspects."""

    after_falls: int
    max_units: int
    release_after_ms: int
    reason: str


class UnitsSuspected(Fact, frozen=True):
    """All suspects from here on, each with its number of falls in a row, and the time of the last one.

    `member_id` is the holder that fell last, or that survived one.
    """

    suspects: tuple[tuple[str, int, int], ...]
    member_id: str
    reason: str


class UnitsQuarantined(Fact, frozen=True):
    """Assignments leave these units out, until then; 0: until an administrator releases them. `cause` says how the last
    holder fell.
    """

    units: tuple[str, ...]
    until_ms: int
    reason: str
    cause: str = ""


class UnitsReleased(Fact, frozen=True):
    """Assignments have these units again."""

    units: tuple[str, ...]
    reason: str


class GroupEmptied(Fact, frozen=True):
    """The last member is gone. `by` is that member, empty if the sentence counts several."""

    generation_id: int
    reason: str
    cause: str = ""
    by: str = ""


class GroupDeleted(Fact, frozen=True):
    """Its offsets are gone; its generation stays behind, for the token must never go back."""

    generation_id: int
    reason: str


class TopicChanged(Fact, frozen=True):
    """A topic of the namespace was put (`partitions` > 0) or deleted (0).

    Every shard records a deletion, because each has groups with progress that is of the deleted topic (ADR 107).
    """

    topic: str
    partitions: int
    attributes: tuple[tuple[str, str], ...]
    reason: str = ""
    revision: int = 0
    """Counts the changes of the namespace's topics."""


class Administered(Fact, frozen=True):
    """An administrator did what the lines before this one record; changes nothing by itself.

    `target` is the member or topic that it was done to, or a token's name and id; it is empty if that is the group.
    `reason` is the administrator's note, `origin` the address or machine that they were at.
    """

    operation: str
    actor: str
    target: str
    reason: str = ""
    origin: str = ""


class ShardAcquired(Fact, frozen=True):
    """A new owner loaded the shard: every join phase that was under way is forgotten."""

    replica_id: str
    epoch: int
    reason: str


class ShardReleased(Fact, frozen=True):
    """An owner let the shard go in order: its last line. Where there is none, it died, or its lease was over."""

    replica_id: str
    epoch: int
    reason: str


Maintenance = (
    GroupFrozen | GroupUnfrozen | LeaveGranted | QuarantineChanged | UnitsSuspected | UnitsQuarantined | UnitsReleased
)
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
    | Maintenance
    | GroupEmptied
    | GroupDeleted
    | TopicChanged
    | Administered
    | ShardAcquired
    | ShardReleased
)


RECORD_KINDS: dict[str, type[Fact]] = {record.kind: record for record in get_args(Record)}


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


# --- records as JSON values and back --------------------------------------------------------------

# The form in which the journal keeps them, and the pipeline reads them. A payload holds the record's fields by name,
# less `reason`, which is a column of its own. Bytes are base64, tuples are lists, a member's protocols are
# `[name, metadata]` pairs, and an offset above 2^53 - 1 is a string.


def encode_entry(entry: Entry) -> dict[str, Any]:
    """A journal line without its sequence number: JSON values only."""
    ((kind, reason, payload),) = lines_of([entry.record])
    return {
        "at_ms": entry.at_ms,
        "namespace": entry.namespace,
        "group_id": entry.group_id,
        "generation_id": entry.generation_id,
        "kind": kind,
        "reason": reason,
        "payload": payload,
    }


def lines_of(records: Iterable[Record]) -> list[tuple[str, str, dict[str, Any]]]:
    """The kind, the reason and the payload of each record, as its line in the journal has them."""
    return [(record.kind, getattr(record, "reason", ""), payload_of(record)) for record in records]


def payload_of(record: Record) -> dict[str, Any]:
    """All else that a line says of its record, by the names of the record's fields."""
    if type(record) is OffsetsCommitted:
        # The line that comes most often, written out.
        return {"member_id": record.member_id, "offsets": [_encode_offset(offset) for offset in record.offsets]}
    payload: dict[str, Any] = msgspec.to_builtins(record)
    payload.pop("reason", None)
    if isinstance(record, MemberJoined | MemberUpdated):
        pairs = [[each.name, b64encode(each.metadata).decode()] for each in record.member.protocols]
        payload["member"]["protocols"] = pairs
        if not record.member.subject:
            del payload["member"]["subject"]
    return payload


def _encode_offset(offset: CommittedOffset) -> list[Any]:
    values: list[Any] = [*offset]
    if offset.offset > MAX_SAFE_INTEGER:
        values[2] = str(offset.offset)
    while len(values) > _PLACE_AND_OFFSET and values[-1] is None:
        values.pop()
    return values


def decode_entry(line: Mapping[str, Any]) -> Entry:
    """The entry that `encode_entry` wrote. KeyError for a kind that this version does not know, ValueError or TypeError
    for a payload that is none of its kind.
    """
    kind, payload = RECORD_KINDS[line["kind"]], dict(line["payload"])
    if "reason" in kind.__struct_fields__:
        payload["reason"] = line["reason"]
    if "member" in payload:
        protocols = [{"name": name, "metadata": metadata} for name, metadata in payload["member"]["protocols"]]
        payload["member"] = {**payload["member"], "protocols": protocols}
    if "offsets" in payload:
        payload["offsets"] = [
            [topic, number, int(offset) if isinstance(offset, str) else offset, *rest]
            for topic, number, offset, *rest in payload["offsets"]
        ]
    record: Any = msgspec.convert(payload, kind)
    return Entry(line["namespace"], line["group_id"], line["generation_id"], line["at_ms"], record)


# --- which causes a record may have, by the line before it ----------------------------------------


_DEPARTURES: Mapping[type[Record], tuple[Cause, ...]] = {
    MemberLeft: (Cause.MEMBER_LEFT, Cause.UNIT_FAILED),
    MemberExpired: (Cause.MEMBER_EXPIRED, Cause.SYNC_TIMEOUT),
    MemberRemoved: (Cause.MEMBER_REMOVED, Cause.GROUP_FULL),
}
_FORMER: Mapping[Cause, tuple[type[Record], ...]] = {
    Cause.MEMBER_JOINED: (MemberJoined,),
    Cause.MEMBER_LEFT: (MemberLeft,),
    Cause.UNIT_FAILED: (MemberLeft,),
    Cause.MEMBER_EXPIRED: (MemberExpired,),
    Cause.SYNC_TIMEOUT: (MemberExpired,),
    Cause.MEMBER_REMOVED: (MemberRemoved,),
    Cause.METADATA_CHANGED: (MemberUpdated,),
    Cause.STATIC_MEMBER_RETURNED: (MemberFenced, MemberUpdated),
    Cause.ASSIGNMENT_FAILED: (AssignmentFailed,),
    Cause.GENERATION_RAISED: (GenerationRaised,),
}
"""What the coordinator writes just before a rebalance of this cause, where that is a line of its own."""
TELLING = (*_DEPARTURES, MemberJoined, MemberUpdated, MemberFenced, AssignmentFailed, GenerationRaised)
"""The records that can stand before one with a cause; the caller keeps the group's last one."""


def has_cause(record: Record) -> bool:
    """Whether the coordinator gives records of this kind a code, which the rules below can check."""
    if isinstance(record, AssignmentSynced):
        return record.resync
    return isinstance(record, RebalanceStarted | GroupEmptied | MemberLeft | MemberExpired | MemberRemoved)


def wrong_cause(record: Record, former: Record | None) -> str:
    """What contradicts the record's code, empty if nothing does.

    `former` is the group's last record of `TELLING` by the same owner, None if there is none: what an earlier owner
    had not settled never was.
    """
    match record:
        case MemberLeft() | MemberExpired() | MemberRemoved():
            allowed = _DEPARTURES[type(record)]
            return "" if record.cause in allowed else f"{record.kind} has the cause {record.cause!r}"
        case AssignmentSynced():
            allowed = (Cause.RESYNC, getattr(former, "cause", Cause.RESYNC))
            return "" if record.cause in allowed else f"a resync has the cause {record.cause!r}"
        case GroupEmptied() if former is not None:
            agrees = isinstance(former, MemberLeft | MemberExpired | MemberRemoved) and former.cause == record.cause
            return "" if agrees else f"the group is empty for {record.cause!r}, after {former.kind}"
        case RebalanceStarted():
            if record.cause not in tuple(Cause) or record.cause == Cause.OTHER:
                return f"a rebalance has the cause {record.cause!r}"
            expected = _FORMER.get(Cause(record.cause))
            if former is not None and expected is not None and not isinstance(former, expected):
                return f"a rebalance has the cause {record.cause!r}, after {former.kind}"
    return ""


# --- triggers of rebalances -----------------------------------------------------------------------


class Trigger(NamedTuple):
    """`cause` is a code of `rota.protocol.causes`; `by` is the member that caused it, empty if no single one did."""

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
