"""A group: its states, the table of transitions between them, its members, and how its state is kept.

Theory of operation
===================

A `Group` holds two kinds of state, and it matters which is which.

*Facts* change only through records (`records.py`), which `apply` folds into the group and the store
keeps in its journal. Folding a journal gives the facts again, bit by bit.

*Soft state* may be lost in a restart: parked calls, session deadlines, pending ids.
Handlers change it directly; a new owner starts without it and gives every member a full session.

Of the facts, those of a join phase under way do not survive a restart either (protocol.md §5: "before the
generation is durable, members join again, nothing happened"). So a group has a *settled* side, which is the state that
the rows in the store have: `Group.settled`, and each member's `settled` image, None for a newcomer that has not
been in a completed generation yet. `forget_unsettled()` falls back to it, and

    load(rows of a group)  ==  fold(journal of a group), then forget_unsettled()

is checked by the simulator after every step and by `rota db verify` on a live store. Acknowledged changes are
settled at once: a leave, an expiry, a replaced static member, an offset, a generation, an assignment. As nothing that
is not settled has to be durable, no append is made for it alone: see `records.settles`.

The allowed transitions are one table, `TRANSITIONS`; `Group.move_to` rejects any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias, get_args

from rota.core.group.records import (
    AssignmentFailed,
    AssignmentSynced,
    Entry,
    GapCount,
    GenerationCompleted,
    GenerationRaised,
    GroupEmptied,
    GroupFrozen,
    GroupUnfrozen,
    LeaveGranted,
    Maintenance,
    MemberExpired,
    MemberFenced,
    MemberGone,
    MemberJoined,
    MemberLeft,
    MemberRemoved,
    MemberUpdated,
    OffsetsCommitted,
    OffsetsDeleted,
    QuarantineChanged,
    RebalanceStarted,
    Record,
    Trigger,
    UnitsQuarantined,
    UnitsReleased,
    UnitsSuspected,
    trigger_of,
)
from rota.core.group.rows import (
    NO_QUARANTINE,
    GroupRow,
    GroupState,
    MemberImage,
    MemberRow,
    OffsetRow,
    Quarantine,
    TopicRow,
)
from rota.core.types import Departed
from rota.protocol.fencing_token import LAST_TAKEOVER, fencing_token
from rota.protocol.limits import Limits
from rota.protocol.messages import NO_GENERATION, Reply

EMPTY = GroupState.EMPTY
PREPARING_REBALANCE = GroupState.PREPARING_REBALANCE
COMPLETING_REBALANCE = GroupState.COMPLETING_REBALANCE
STABLE = GroupState.STABLE
DEAD = GroupState.DEAD

Topics: TypeAlias = Mapping[tuple[str, str], TopicRow]
"""The topics of a shard, by namespace and name."""

TRANSITIONS: dict[tuple[GroupState, GroupState], str] = {
    (EMPTY, PREPARING_REBALANCE): "first join",
    (PREPARING_REBALANCE, COMPLETING_REBALANCE): "every member has joined, or the rebalance timeout ran out",
    (PREPARING_REBALANCE, EMPTY): "no member rejoined",
    (COMPLETING_REBALANCE, STABLE): "leader's sync",
    (COMPLETING_REBALANCE, PREPARING_REBALANCE): "join, changed metadata, leave, expiry, or the leader's error",
    (COMPLETING_REBALANCE, EMPTY): "last member gone",
    (STABLE, PREPARING_REBALANCE): "new member, changed metadata, leader rejoins, leave, expiry, or the leader's error",
    (STABLE, STABLE): "leader's resync",
    (STABLE, EMPTY): "last member gone",
    (EMPTY, DEAD): "deleted, or its last offset expired",
}
"""Every move a group can make, with the event that makes it (protocol.md §2)."""


class Ranked(NamedTuple):
    """A member's priority, and since when it has had it in the generations of this owner."""

    priority: int
    since_ms: int


class Fall(NamedTuple):
    """A holder that has fallen since the last generation, with the units that are suspects for it.

    There are no suspects if its end is no evidence.
    """

    member_id: str
    units: tuple[str, ...]
    cause: str
    reason: str


class ChangeKind(StrEnum):
    REBALANCE = "rebalance"
    """A join phase, a resync or the end of the last member; its name is the cause."""
    TAKEOVER = "takeover"
    """A static member's successor took its place; its name is the `group_instance_id`."""
    DEPARTURE = "departure"
    """A member left, expired or was removed; its name is the client, with its host."""


class Change(NamedTuple):
    """One change of a group, for `describe.py`."""

    at_ms: int
    kind: ChangeKind
    name: str
    reason: str = ""


MOST_CHANGES = 200
"""So many of the latest changes are remembered."""


class StepsDown(NamedTuple):
    """An administrator's wish that a leader steps down, which the leader has not been asked yet."""

    member_id: str
    at_ms: int
    reason: str


class Member:
    """One member: the data it joined with, and its progress in the running phase."""

    __slots__ = (
        "assignment",
        "gaps",
        "has_fetched",
        "heartbeat_call",
        "image",
        "join_call",
        "joined",
        "joined_again",
        "known_generation_id",
        "longest_gap_ms",
        "member_id",
        "missed_phase",
        "position",
        "session_armed_ms",
        "session_deadline_ms",
        "settled",
        "skip_assignment",
        "sync_call",
        "taken_along_from",
        "takeover",
    )

    def __init__(self, image: MemberImage, position: int) -> None:
        self.member_id = image.member_id
        self.image = image
        self.position = position
        self.settled: MemberImage | None = None
        self.assignment = b""
        self.takeover = 0
        """Its number among the takeovers of this generation; 0 unless it has another member's place since then."""
        # Soft from here on.
        self.joined = False
        """It joined in this phase. It stays true between two polls of a pending join."""
        self.joined_again = True
        """It may have had this generation's answer to a join more than once, and then it may assign more than once. An
        owner that has loaded the group does not know.
        """
        self.known_generation_id = NO_GENERATION
        """The highest generation that its last join named."""
        self.join_call: int | None = None
        self.sync_call: int | None = None
        self.heartbeat_call: int | None = None
        self.session_deadline_ms: int | None = None
        """When its session ends, inclusive; None while a parked call proves that it lives."""
        self.session_armed_ms: int | None = None
        """The earliest timer set for this session: it may fire early, never late."""
        self.gaps: GapCount | None = None
        """How regularly its heartbeats came since that was last reported; None if none came since."""
        self.longest_gap_ms = 0
        """The longest gap that was reported last; 0 if none was."""
        self.has_fetched = True
        """It has fetched its share since the join phase ended, as far as this owner knows."""
        self.missed_phase = False
        """It is static and did not join in the last join phase, as far as this owner knows: it may be gone."""
        self.skip_assignment = False
        """A returning static leader that has not to assign: its next sync only fetches."""
        self.taken_along_from: int | None = None
        """It was taken along into the present generation, and may still hold any generation from this one on; None once
        it has synced. See `rebalance.py`."""

    @property
    def seen_at_ms(self) -> int | None:
        """When the session was last renewed; None while a parked call proves that the member lives."""
        deadline_ms = self.session_deadline_ms
        return None if deadline_ms is None else deadline_ms - self.image.session_timeout_ms


class Group:
    """One group. See the module's docstring for which fields are facts and which are soft."""

    __slots__ = (
        "asked_ms",
        "assigned_generation_id",
        "changes",
        "departed",
        "dirty",
        "dirty_members",
        "dirty_offsets",
        "falls",
        "fenced_reported",
        "frozen_reason",
        "frozen_until_ms",
        "generation_id",
        "generation_leader_id",
        "group_id",
        "held_back",
        "initial",
        "join_deadline_ms",
        "join_generation_id",
        "join_remaining_ms",
        "joined_count",
        "last_gone",
        "leader_id",
        "leaving",
        "loaded_ms",
        "members",
        "namespace",
        "newcomer_arrived",
        "next_position",
        "offsets",
        "passed_over",
        "pending",
        "pending_sync",
        "preempt_at_ms",
        "protocol_name",
        "protocol_type",
        "quarantine",
        "ranked",
        "rebalance_by",
        "rebalance_cause",
        "rebalance_reason",
        "rebalance_started_ms",
        "reigns",
        "settled",
        "state",
        "state_since_ms",
        "static_members",
        "steps_down",
        "support",
        "sync_deadline_ms",
        "takeovers",
        "topics",
        "unowned",
    )

    def __init__(self, namespace: str, group_id: str, generation_id: int = 0, topics: Topics | None = None) -> None:
        """`topics`: the shard's, which all of its groups refer to."""
        self.namespace = namespace
        self.group_id = group_id
        self.topics = {} if topics is None else topics
        self.state = EMPTY
        self.generation_id = generation_id
        self.join_generation_id = generation_id
        self.takeovers = 0
        """How many static members of this generation another member id has taken over."""
        self.protocol_type = ""
        """Empty before the first member joins."""
        self.protocol_name = ""
        """Of the generation; empty if the group has none."""
        self.generation_leader_id: str | None = None
        """The leader of the generation, None once it is removed: no other member becomes its leader."""
        self.leader_id: str | None = None
        """The leader of the next generation if it joins: mostly the same, or the earliest member after its removal."""
        self.state_since_ms = 0
        self.rebalance_reason = ""
        self.rebalance_by = ""
        self.rebalance_cause = ""
        self.frozen_until_ms: int | None = None
        self.frozen_reason = ""
        self.leaving: dict[str, int] = {}
        """Members that may leave, with the time when each permission is void."""
        self.quarantine = NO_QUARANTINE
        self.settled: GroupRow | None = None
        """What the store says of this group; None while it knows nothing of it."""
        self.members: dict[str, Member] = {}
        """By member id, in the order of joining: ties are broken by it (protocol.md §9)."""
        self.next_position = 0
        self.static_members: dict[str, str] = {}
        self.support: dict[str, int] = {}
        """How many members list each protocol."""
        self.offsets: dict[tuple[str, int], OffsetRow] = {}
        # Which rows no longer say what the facts say. Harvested by `rows_of`.
        self.dirty = False
        self.dirty_members: dict[str, None] = {}
        self.dirty_offsets: dict[tuple[str, int], None] = {}
        # Soft from here on.
        self.assigned_generation_id: int | None = None
        """The last generation with an assignment; None if a new owner has found the group in a join phase."""
        self.last_gone: MemberGone | None = None
        """The end of the last member, if the group has no members: it may become Empty only later."""
        self.rebalance_started_ms = 0
        self.pending: dict[str, int] = {}
        """Ids given out but not yet used, with the time when each is void."""
        self.pending_sync: dict[str, None] = {}
        self.joined_count = 0
        self.initial = False
        """The join phase started from Empty: it ends by its timer only."""
        self.newcomer_arrived = False
        self.join_deadline_ms: int | None = None
        self.join_remaining_ms = 0
        self.sync_deadline_ms: int | None = None
        self.passed_over: str | None = None
        """The leader that was asked to step down: any other member that joins leads instead."""
        self._start_without_history()

    def _start_without_history(self) -> None:
        """Soft state of what waits (for the end of a freeze, or for a candidate that outranks the leader), and of what
        this owner has seen itself.
        """
        self.held_back: Trigger | None = None
        """The rebalance that begins when the freeze ends."""
        self.ranked: dict[str, Ranked] = {}
        """By member id, where the type has priorities. See `succession.py`, as for the next three."""
        self.reigns: tuple[str, int] | None = None
        """The leader, and since when it has led."""
        self.steps_down: StepsDown | None = None
        self.preempt_at_ms: int | None = None
        """When the leader is to be asked to hand over."""
        self.departed: list[Departed] = []
        """Members of the last assignment that are gone since."""
        self.asked_ms = 0
        """When the server was last asked to assign the group."""
        self.falls: list[Fall] = []
        """Holders that have fallen since the last generation."""
        self.loaded_ms: int | None = None
        """When this owner loaded the group; None if it was created here."""
        self.fenced_reported: set[tuple[str, str]] = set()
        self.changes: list[Change] = []
        """The latest ones since this owner has had the group, the oldest first."""
        self.unowned: tuple[int, int, tuple[str, ...]] = (0, 0, ())
        """A generation, how many partitions of registered topics no member of it owns, and the first of their names."""

    # --- questions ----------------------------------------------------------------------------

    @property
    def key(self) -> tuple[str, str]:
        return (self.namespace, self.group_id)

    def topic_id(self, topic: str) -> int:
        """The topic that progress under this name is of: another id after each deletion."""
        row = self.topics.get((self.namespace, topic))
        return row.topic_id if row is not None else 0

    def is_leader(self, member_id: str) -> bool:
        return self.leader_id == member_id

    def is_frozen(self, now_ms: int) -> bool:
        return self.frozen_until_ms is not None and now_ms < self.frozen_until_ms

    def says_frozen(self, now_ms: int) -> str:
        """Why a call waits, for people."""
        seconds = ((self.frozen_until_ms or now_ms) - now_ms + 999) // 1000
        reason = f" ({self.frozen_reason})" if self.frozen_reason else ""
        return f"the group is frozen for {seconds} s more{reason}"

    def leaving_at(self, now_ms: int) -> dict[str, int]:
        """The members that may leave and have not left."""
        return {each: until_ms for each, until_ms in self.leaving.items() if until_ms > now_ms}

    def token_of(self, member: Member) -> int:
        """The fencing token that this member has in the current generation."""
        return fencing_token(self.generation_id, member.takeover)

    def next_takeover(self, member: Member) -> int:
        """The number that a successor of this member gets. A newcomer holds no token yet, so it passes none on."""
        return 0 if member.settled is None else min(self.takeovers + 1, LAST_TAKEOVER)

    def all_joined(self) -> bool:
        """Every known member has joined and no pending id is left."""
        return self.joined_count == len(self.members) and not self.pending

    def rebalance_timeout_ms(self) -> int:
        """The largest of the members', so that the slowest has its time."""
        return max((member.image.rebalance_timeout_ms for member in self.members.values()), default=0)

    def supports(self, protocol_type: str, protocol_names: tuple[str, ...]) -> bool:
        """Could a member with these protocols be in the group? An Empty group takes any type."""
        if self.state is EMPTY:
            return bool(protocol_type and protocol_names)
        if self.protocol_type != protocol_type:
            return False
        everybody = len(self.members)
        return any(self.support.get(name, 0) == everybody for name in protocol_names)

    def select_protocol(self) -> str:
        """The protocol that most members prefer among those that all of them list.

        A tie goes to the one that the earliest member prefers (Kafka leaves it to hash order).
        """
        everybody = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(p.name for p in member.image.protocols if self.support[p.name] == everybody)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def note_change(self, at_ms: int, kind: ChangeKind, name: str, reason: str = "") -> None:
        self.changes.append(Change(at_ms, kind, name, reason))
        if len(self.changes) > 2 * MOST_CHANGES:
            del self.changes[:-MOST_CHANGES]

    # --- moves of the facts, called by `apply` only --------------------------------------------

    def move_to(self, state: GroupState, now_ms: int) -> None:
        assert (self.state, state) in TRANSITIONS, f"no way from {self.state} to {state}"
        self.state = state
        self.state_since_ms = now_ms

    def begin_generation(self, generation_id: int) -> None:
        """A new generation has tokens of its own: no takeover has been counted in it."""
        self.generation_id = generation_id
        self.takeovers = 0
        for member in self.members.values():
            if member.takeover:
                member.takeover = 0
                self.dirty_members[member.member_id] = None

    def admit(self, image: MemberImage) -> Member:
        member = Member(image, self.next_position)
        self.next_position += 1
        self.members[image.member_id] = member
        self._count(image, 1)
        if image.group_instance_id is not None:
            self.static_members[image.group_instance_id] = image.member_id
        if self.leader_id is None:
            self.leader_id = image.member_id
        return member

    def update(self, member: Member, image: MemberImage) -> None:
        self._count(member.image, -1)
        member.image = image
        self._count(image, 1)

    def dismiss(self, member_id: str) -> Member:
        member = self.members.pop(member_id)
        self._count(member.image, -1)
        if member.image.group_instance_id is not None:
            del self.static_members[member.image.group_instance_id]
        if member.joined:
            self.joined_count -= 1
        self.pending_sync.pop(member_id, None)
        self.leaving.pop(member_id, None)
        if self.generation_leader_id == member_id:
            self.generation_leader_id = None
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        return member

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member a new id in the old one's place (its position breaks ties)."""
        old_id = member.image.member_id
        member.member_id = member_id
        member.image = replace(member.image, member_id=member_id)
        if member.settled is not None:
            member.settled = replace(member.settled, member_id=member_id)
        assert member.image.group_instance_id is not None
        self.static_members[member.image.group_instance_id] = member_id
        self.members = {(member_id if key == old_id else key): value for key, value in self.members.items()}
        self.leaving.pop(old_id, None)  # The process that was to leave is back as another one.
        if old_id in self.pending_sync:
            del self.pending_sync[old_id]
            self.pending_sync[member_id] = None
        if self.generation_leader_id == old_id:
            self.generation_leader_id = member_id
        if self.leader_id == old_id:
            self.leader_id = member_id
        if self.passed_over == old_id:
            self.passed_over = member_id

    def _count(self, image: MemberImage, step: int) -> None:
        support = self.support
        for protocol in image.protocols:
            count = support.get(protocol.name, 0) + step
            if count:
                support[protocol.name] = count
            else:
                del support[protocol.name]

    # --- the settled side ----------------------------------------------------------------------

    def settle(self, state: GroupState) -> None:
        """From here on a restart finds the group in `state`, with the members that are settled."""
        self.settled = GroupRow(
            namespace=self.namespace,
            group_id=self.group_id,
            state=state.value,
            generation_id=self.generation_id,
            join_generation_id=self.join_generation_id,
            protocol_type=self.protocol_type or None,
            protocol_name=self.protocol_name or None,
            leader_id=self.generation_leader_id,
            state_since_ms=self.state_since_ms,
            rebalance_reason=self.rebalance_reason,
            rebalance_by=self.rebalance_by,
            takeovers=self.takeovers,
            rebalance_cause=self.rebalance_cause,
            frozen_until_ms=self.frozen_until_ms,
            frozen_reason=self.frozen_reason,
            leaving=tuple(self.leaving.items()),
            quarantine=self.quarantine,
        )
        self.dirty = True

    def settle_trigger(self, cause: str, reason: str, by: str) -> None:
        """Let the row say this of the last rebalance; what the group itself says of the one under way stays."""
        assert self.settled is not None
        self.settled = replace(self.settled, rebalance_cause=cause, rebalance_reason=reason, rebalance_by=by)

    def settle_member(self, member: Member) -> None:
        if member.settled is not member.image:
            member.settled = member.image
            self.dirty_members[member.member_id] = None

    def forget_unsettled(self) -> None:
        """Fall back to what the store knows, as a new owner would: the running join phase never was."""
        assert self.settled is not None, "a group that the store does not know is dropped, not reset"
        for member in [m for m in self.members.values() if m.settled is None]:
            self.dismiss(member.member_id)
        for member in self.members.values():
            if member.settled is not None and member.settled is not member.image:
                self.update(member, member.settled)
        last = next(reversed(self.members.values()), None)
        self.next_position = last.position + 1 if last is not None else 0
        self.resume(self.settled)

    def resume(self, row: GroupRow) -> None:
        """Take all facts from the row. If the generation's leader has gone, the earliest member follows it."""
        self.settled = row
        self.state = GroupState(row.state)
        self.assigned_generation_id = row.generation_id if self.state is STABLE else None
        self.generation_id = row.generation_id
        self.join_generation_id = row.join_generation_id
        self.takeovers = row.takeovers
        self.state_since_ms = row.state_since_ms
        self.protocol_type = row.protocol_type or ""
        self.protocol_name = row.protocol_name or ""
        self.generation_leader_id = row.leader_id
        self.leader_id = row.leader_id or next(iter(self.members), None)
        self.rebalance_reason = row.rebalance_reason
        self.rebalance_by = row.rebalance_by
        self.rebalance_cause = row.rebalance_cause
        self.frozen_until_ms = row.frozen_until_ms
        self.frozen_reason = row.frozen_reason
        self.leaving = dict(row.leaving)
        self.quarantine = row.quarantine

    def member_row(self, member: Member) -> MemberRow:
        assert member.settled is not None
        return MemberRow(
            self.namespace, self.group_id, member.position, member.settled, member.assignment, member.takeover
        )


# --- the outcome of a command ---------------------------------------------------------------------


class TimerKind(StrEnum):
    SESSION = "session"
    """A member's session may be over."""
    JOIN = "join"
    """The initial delay or the rebalance timeout of a join phase."""
    SYNC = "sync"
    """The rebalance timeout, counted from the completed join phase: members that have not synced are removed."""
    PENDING = "pending"
    """A pending id was not used in time."""
    THAW = "thaw"
    """A freeze is over."""
    RELEASE = "release"
    """The time of a quarantined unit is over."""
    PREEMPT = "preempt"
    """A candidate has outranked the leader for long enough."""
    ASSIGN = "assign"
    """The server is to assign this generation: asks the runtime to, see `assignment.py`. It never fires in the core."""


class Timer(NamedTuple):
    """Ask to be woken at `at_ms`. Timers are never cancelled: one that is out of date does nothing."""

    kind: TimerKind
    namespace: str
    group_id: str
    member_id: str
    at_ms: int


class Result:
    """The outcome of one command or timer: a plain record, which the rules write to.

    `records` are already folded into the group that decided them; no other process may learn of them before the
    store has them. `reason` describes the change, empty without one. `seen` collects the members with a
    session that began or stopped, where replicas share that (else None); it outlives the result. `warning` is for the
    log of the process, empty if there is none.
    """

    __slots__ = ("limits", "now_ms", "reason", "records", "replies", "seen", "timers", "warning")

    def __init__(self, now_ms: int, limits: Limits, seen: dict[Member, Group] | None = None) -> None:
        # Written out: one is made for each heartbeat, and a dataclass with default factories takes half as long again.
        self.now_ms = now_ms
        self.limits = limits
        self.seen = seen
        self.records: list[Entry] = []
        self.timers: list[Timer] = []
        self.replies: list[tuple[int, Reply]] = []
        self.reason = ""
        self.warning = ""

    def reply(self, call: int, reply: Reply) -> None:
        self.replies.append((call, reply))

    def set_timer(self, kind: TimerKind, group: Group, member_id: str, at_ms: int) -> None:
        self.timers.append(Timer(kind, group.namespace, group.group_id, member_id, at_ms))


# --- folding records ------------------------------------------------------------------------------

# The only code that changes the facts of a group. Live decisions and a rebuild from the journal go through the same
# functions, so they cannot drift apart.


def apply(group: Group, record: Record, at_ms: int) -> None:
    """Change `group` as `record` says. A record without a function here is for readers of the journal."""
    fold = _APPLY.get(type(record))
    if fold is not None:
        fold(group, record, at_ms)


def record(result: Result, group: Group, fact: Record) -> None:
    """Fold a fact that was just decided into the group, and keep it for the journal."""
    apply(group, fact, result.now_ms)
    result.records.append(Entry(group.namespace, group.group_id, group.generation_id, result.now_ms, fact))


def _rebalance_started(group: Group, record: RebalanceStarted, at_ms: int) -> None:
    group.initial = group.state is EMPTY
    group.move_to(PREPARING_REBALANCE, at_ms)
    _note_trigger(group, record, at_ms)
    group.rebalance_started_ms = at_ms


def _note_trigger(group: Group, record: RebalanceStarted | GroupEmptied | AssignmentSynced, at_ms: int) -> None:
    group.rebalance_cause = record.cause
    group.rebalance_reason = record.reason
    group.rebalance_by = record.by
    group.note_change(at_ms, ChangeKind.REBALANCE, record.cause)


def _member_joined(group: Group, record: MemberJoined, _at_ms: int) -> None:
    if group.state is EMPTY:
        # An Empty group forgets its old type as soon as it has a member.
        group.protocol_type = record.protocol_type
    group.admit(record.member)


def _member_updated(group: Group, record: MemberUpdated, _at_ms: int) -> None:
    member = group.members[record.member.member_id]
    group.update(member, record.member)
    if record.settle:
        group.settle_member(member)


def _member_gone(group: Group, record: MemberGone, at_ms: int) -> None:
    member = group.dismiss(record.member_id)
    client, host = member.image.client_id or record.member_id, member.image.host
    group.note_change(at_ms, ChangeKind.DEPARTURE, f"{client} at {host}" if host else client)
    if member.assignment:
        metadata = member.image.metadata_for(group.protocol_name)
        instance_id = member.image.group_instance_id
        group.departed.append(Departed(record.member_id, instance_id, metadata, member.assignment, at_ms))
    if not group.members:
        group.last_gone = record
    if member.settled is not None:
        group.dirty_members[record.member_id] = None
        # It is gone for good, so an owner that loads the group must start a rebalance.
        group.settle(PREPARING_REBALANCE)
        if not any(other.settled for other in group.members.values()):
            # A new owner finds no member, only the row: it must say how the last one went.
            group.settle_trigger(*trigger_of(record))


def _member_fenced(group: Group, record: MemberFenced, at_ms: int) -> None:
    member = group.members[record.member_id]
    group.note_change(at_ms, ChangeKind.TAKEOVER, record.group_instance_id, record.reason)
    group.rename(member, record.new_member_id)
    if record.takeover:
        group.takeovers = member.takeover = record.takeover
    if member.settled is None or group.settled is None:
        return
    group.dirty_members[record.member_id] = None
    group.dirty_members[record.new_member_id] = None
    settled_state = group.settled.state
    # The leader may be assigning to the old id right now (KAFKA-9801): a restart must not let it finish.
    group.settle(PREPARING_REBALANCE if settled_state == COMPLETING_REBALANCE else GroupState(settled_state))


def _generation_completed(group: Group, record: GenerationCompleted, at_ms: int) -> None:
    group.move_to(COMPLETING_REBALANCE, at_ms)
    group.begin_generation(record.generation_id)
    group.join_generation_id = record.generation_id
    group.protocol_name = record.protocol_name
    group.leader_id = group.generation_leader_id = record.leader_id
    group.initial = False
    group.fenced_reported.clear()
    assert tuple(group.members) == record.member_ids, "the journal and the group disagree about the members"
    for member in group.members.values():
        group.settle_member(member)
    group.settle(COMPLETING_REBALANCE)


def _generation_raised(group: Group, record: GenerationRaised, _at_ms: int) -> None:
    group.generation_id = record.generation_id
    group.join_generation_id = record.generation_id
    group.fenced_reported.clear()
    if group.settled is not None:
        # A new owner must let the members agree anew, for none of them holds this generation.
        group.settle(EMPTY if group.settled.state == EMPTY else PREPARING_REBALANCE)


def _assignment_synced(group: Group, record: AssignmentSynced, at_ms: int) -> None:
    if record.resync:
        group.begin_generation(record.generation_id)
        group.leader_id = group.generation_leader_id = record.leader_id
        group.fenced_reported.clear()
        _note_trigger(group, record, at_ms)
    group.move_to(STABLE, at_ms)
    group.assigned_generation_id = record.generation_id
    group.departed.clear()
    assignments = dict(record.assignments)
    for member in group.members.values():
        assignment = assignments.get(member.member_id, b"")
        if member.assignment != assignment:
            member.assignment = assignment
            group.dirty_members[member.member_id] = None
    group.settle(STABLE)


def _assignment_failed(group: Group, _record: AssignmentFailed, _at_ms: int) -> None:
    group.settle(PREPARING_REBALANCE)


def _maintained(group: Group, record: Maintenance, at_ms: int) -> None:
    """An administrator froze or drained the group; a rule or an administrator changed its quarantine."""
    rule = group.quarantine
    match record:
        case GroupFrozen():
            group.frozen_until_ms, group.frozen_reason = record.until_ms, record.reason
        case GroupUnfrozen():
            group.frozen_until_ms, group.frozen_reason = None, ""
        case LeaveGranted():
            group.leaving = {**group.leaving_at(at_ms), record.member_id: record.until_ms}
        case QuarantineChanged(after_falls=after_falls):
            suspects = rule.suspects if after_falls else ()
            group.quarantine = Quarantine(after_falls, record.max_units, record.release_after_ms, suspects, rule.units)
        case UnitsSuspected():
            group.quarantine = replace(rule, suspects=record.suspects)
        case UnitsQuarantined():
            suspects = tuple(each for each in rule.suspects if each[0] not in record.units)
            units = (*rule.units, *((unit, record.until_ms) for unit in record.units))
            group.quarantine = replace(rule, suspects=suspects, units=units)
        case UnitsReleased():
            units = tuple(each for each in rule.units if each[0] not in record.units)
            group.quarantine = replace(rule, units=units)
    if group.settled is not None:
        group.settled = replace(
            group.settled,
            frozen_until_ms=group.frozen_until_ms,
            frozen_reason=group.frozen_reason,
            leaving=tuple(group.leaving.items()),
            quarantine=group.quarantine,
        )
        group.dirty = True


def _offsets_committed(group: Group, record: OffsetsCommitted, at_ms: int) -> None:
    namespace, group_id = group.namespace, group.group_id
    for topic, partition, offset, leader_epoch, metadata, its_at_ms, expires_at_ms in record.offsets:
        committed_at_ms = at_ms if its_at_ms is None else its_at_ms
        key = (topic, partition)
        group.offsets[key] = OffsetRow(
            namespace,
            group_id,
            topic,
            partition,
            offset,
            leader_epoch,
            metadata,
            committed_at_ms,
            expires_at_ms,
            group.topic_id(topic),
        )
        group.dirty_offsets[key] = None
    if group.settled is None:
        _settle_simple(group, at_ms)


def _settle_simple(group: Group, at_ms: int) -> None:
    """Offsets keep a group in being although no generation of it was ever completed."""
    if group.state is EMPTY:
        group.state_since_ms = at_ms
    group.settled = GroupRow(*group.key, EMPTY.value, group.generation_id, group.generation_id, state_since_ms=at_ms)
    group.dirty = True


def _offsets_deleted(group: Group, record: OffsetsDeleted, _at_ms: int) -> None:
    for key in record.partitions:
        del group.offsets[key]
        group.dirty_offsets[key] = None


def _group_emptied(group: Group, record: GroupEmptied, at_ms: int) -> None:
    if group.state is not EMPTY:
        group.move_to(EMPTY, at_ms)
    group.begin_generation(record.generation_id)
    group.join_generation_id = record.generation_id
    group.protocol_name = ""
    group.leader_id = group.generation_leader_id = None
    group.initial = False
    group.fenced_reported.clear()
    group.departed.clear()
    _note_trigger(group, record, at_ms)
    group.settle(EMPTY)


_APPLY: dict[type, Callable[[Group, Any, int], None]] = {
    RebalanceStarted: _rebalance_started,
    MemberJoined: _member_joined,
    MemberUpdated: _member_updated,
    MemberLeft: _member_gone,
    MemberExpired: _member_gone,
    MemberRemoved: _member_gone,
    MemberFenced: _member_fenced,
    GenerationCompleted: _generation_completed,
    GenerationRaised: _generation_raised,
    AssignmentSynced: _assignment_synced,
    AssignmentFailed: _assignment_failed,
    OffsetsCommitted: _offsets_committed,
    OffsetsDeleted: _offsets_deleted,
    GroupEmptied: _group_emptied,
    **dict.fromkeys(get_args(Maintenance), _maintained),
}
