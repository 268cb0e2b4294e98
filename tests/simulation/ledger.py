"""What the journal says about each group, a second time: the checks do not trust the core's own folding.

A `Ledger` is moved forward line by line and can be asked how things stood at that revision.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rota.core.group import records as r
from rota.core.group.records import TELLING
from rota.core.group.rows import MemberImage
from rota.core.types.leader import PROTOCOL_TYPE as LEADER_TYPE
from rota.core.types.leader import decode_candidate
from rota.protocol.fencing_token import fencing_token
from tests.simulation.history import GroupKey, Landed
from tests.simulation.quarantine_account import QuarantineAccount


class Rank(NamedTuple):
    """A candidate's priority, and since when it has had it in a generation."""

    priority: int
    since_ms: int


@dataclass(slots=True)
class GroupAccount:
    """One group at one revision. `settled` is what a new owner would still know."""

    generation_id: int = 0
    join_generation_id: int = 0
    """The generation that the last join phase made: resyncs open later ones."""
    state: str = "Empty"
    leader_id: str = ""
    protocol_type: str = ""
    protocol_name: str = ""
    members: dict[str, MemberImage] = field(default_factory=dict)
    settled: dict[str, MemberImage] = field(default_factory=dict)
    settled_state: str | None = None
    takeovers: int = 0
    """How many members of the generation were replaced by another member id."""
    numbers: dict[str, int] = field(default_factory=dict)
    """By the successors' ids, which of those takeovers were theirs."""
    assignments: dict[str, bytes] = field(default_factory=dict)
    offsets: dict[tuple[str, int], r.CommittedOffset] = field(default_factory=dict)
    committed_ms: dict[tuple[str, int], int] = field(default_factory=dict)
    """When each of them was committed, by its owner's clock, or by the store's where a user's transaction did it."""
    rebalance_since_ms: int | None = None
    rebalance_reason: str = ""
    """Of the join phase under way, as long as its owner is the same."""
    telling: r.Record | None = None
    """The last record of this owner that can stand before a cause."""
    empty_since_ms: int | None = None
    """By its owner's clock; None before the group has had a generation, and while it has one."""
    is_initial: bool = False
    """The join phase began in an Empty group: it lasts the initial delay after the last newcomer, at most twice."""
    last_join_ms: int = 0
    rebalance_timeout_ms: int = 0
    """The longest rebalance timeout of all that have been members in this join phase."""
    had_static_members: bool = False
    """Whether one of them was static."""

    lacks_leader: bool = False
    """The join phase began because the leader that the coordinator elected is gone."""
    elects_at_once: bool = False
    """And another member is there for certain: one that is not static."""
    taken_along_from: int | None = None
    """Members may hold any generation from here on, because later ones took them along; None where all have joined."""
    ranks: dict[str, Rank] = field(default_factory=dict)
    """Of the candidates of an election."""
    leads_since_ms: int = 0
    frozen_until_ms: int | None = None
    """By its owner's clock, as are the times of `leaving`."""
    leaving: dict[str, int] = field(default_factory=dict)
    """Until when members have the permission to leave."""
    quarantine: QuarantineAccount = field(default_factory=QuarantineAccount)

    def is_frozen(self, at_ms: int) -> bool:
        return self.frozen_until_ms is not None and at_ms < self.frozen_until_ms

    def expiry_ms(self, name: tuple[str, int], since_ms: int, retention_ms: int) -> int:
        """When an offset expires: by the retention that its commit named, or else by the server's."""
        own_ms = self.offsets[name].expires_at_ms
        return since_ms + retention_ms if own_ms is None else own_ms

    def static_members(self) -> dict[str, list[str]]:
        """Member ids by instance id; more than one id is an error (S16)."""
        found: dict[str, list[str]] = {}
        for member_id, image in self.members.items():
            if image.group_instance_id is not None:
                found.setdefault(image.group_instance_id, []).append(member_id)
        return found

    def token_of(self, member_id: str) -> int:
        """The fencing token that a member has in the generation; a newcomer has none."""
        return fencing_token(self.generation_id, self.numbers.get(member_id, 0)) if member_id in self.settled else -1

    def begin_generation(self, generation_id: int) -> None:
        self.generation_id, self.takeovers = generation_id, 0
        self.numbers.clear()

    def leads(self) -> str:
        """The leader of the generation, as long as it is a member."""
        return self.leader_id if self.leader_id in self.settled else ""

    def lacks_only_a_leader(self) -> bool:
        """Whether the leader of a Stable group of candidates has gone. The next one is elected at once, unless all that
        are left are static and missed the last join phase.
        """
        return self.state == "Stable" and self.protocol_type == LEADER_TYPE and not self.leads()

    def settle(self, state: str) -> None:
        self.settled_state = state

    def forget_unsettled(self, at_ms: int) -> None:
        self.members = dict(self.settled)
        self.state = self.settled_state or "Empty"
        self.rebalance_since_ms = None
        self.rebalance_reason = ""
        self.lacks_leader = self.elects_at_once = False
        self.taken_along_from = None
        self.telling = None
        if self.state == "PreparingRebalance":
            self.start_phase(at_ms)

    def start_phase(self, at_ms: int) -> None:
        """A join phase begins, or a new owner begins it again."""
        self.rebalance_since_ms, self.rebalance_timeout_ms, self.had_static_members = at_ms, 0, False
        for image in self.members.values():
            self.note_in_phase(image)

    def note_in_phase(self, image: MemberImage) -> None:
        self.had_static_members |= image.group_instance_id is not None
        self.rebalance_timeout_ms = max(self.rebalance_timeout_ms, image.rebalance_timeout_ms)


def account_since(floor: int) -> GroupAccount:
    """A group of which the journal knows nothing, except for the generation at which it was last deleted."""
    return GroupAccount(floor, floor)


class Ledger:
    """All groups of one shard."""

    def __init__(self) -> None:
        self.groups: dict[GroupKey, GroupAccount] = {}
        self.floors: dict[GroupKey, int] = {}
        """The generation at which a group was last deleted."""

    def account(self, key: GroupKey) -> GroupAccount:
        account = self.groups.get(key)
        if account is None:
            account = self.groups[key] = account_since(self.floors.get(key, 0))
        return account

    def move(self, line: Landed) -> None:
        """Take one line in."""
        entry = line.entry
        record = entry.record
        if isinstance(record, r.ShardAcquired):
            self._new_owner(line.decided_ms)
        elif isinstance(record, r.GroupDeleted):
            account = self.groups.pop((entry.namespace, entry.group_id))
            self.floors[(entry.namespace, entry.group_id)] = account.generation_id
        elif not isinstance(record, r.ShardReleased | r.TopicChanged):
            account = self.account((entry.namespace, entry.group_id))
            _move(account, record, line.decided_ms)
            if isinstance(record, r.MemberJoined):
                account.last_join_ms = line.landed_ms  # Its timers are set once it is durable.
            if isinstance(record, r.OffsetsCommitted):
                dated = ((item, item.committed_at_ms) for item in record.offsets)
                account.committed_ms.update({(i.topic, i.partition): ms or entry.at_ms for i, ms in dated})
            if isinstance(record, r.GroupEmptied | r.GenerationCompleted):
                account.empty_since_ms = entry.at_ms if account.state == "Empty" else None

    def _new_owner(self, at_ms: int) -> None:
        for key, account in list(self.groups.items()):
            if account.settled_state is None:
                del self.groups[key]
            else:
                account.forget_unsettled(at_ms)


def _move(account: GroupAccount, record: r.Record, at_ms: int) -> None:
    if isinstance(record, TELLING):
        account.telling = record
    match record:
        case r.RebalanceStarted():
            account.is_initial = account.state == "Empty"
            account.lacks_leader = account.lacks_only_a_leader()
            is_there = any(image.group_instance_id is None for image in account.members.values())
            account.elects_at_once = account.lacks_leader and is_there
            account.state = "PreparingRebalance"
            account.rebalance_reason = record.reason
            account.start_phase(at_ms)
        case r.GenerationRaised():
            account.generation_id = account.join_generation_id = record.generation_id
            if account.settled_state is not None:
                account.settle("Empty" if account.settled_state == "Empty" else "PreparingRebalance")
        case r.MemberJoined():
            if not account.members:
                account.protocol_type = record.protocol_type
            account.members[record.member.member_id] = record.member
            account.note_in_phase(record.member)
        case r.MemberUpdated():
            account.members[record.member.member_id] = record.member
            account.note_in_phase(record.member)
            if record.settle:
                account.settled[record.member.member_id] = record.member
                if record.member.member_id in account.ranks:
                    account.ranks[record.member.member_id] = _rank(account, record.member.member_id, at_ms)
        case r.MemberLeft() | r.MemberExpired() | r.MemberRemoved():
            _go(account, record.member_id)
        case r.MemberFenced():
            _rename(account, record, at_ms)
        case r.GenerationCompleted():
            _complete(account, record, at_ms)
        case r.AssignmentSynced():
            if record.generation_id != account.generation_id:
                account.begin_generation(record.generation_id)
            if record.leader_id != account.leader_id:  # A departure gave its shares to standbys at once.
                account.leader_id, account.leads_since_ms = record.leader_id, at_ms
            account.state = "Stable"
            account.rebalance_since_ms = None
            account.assignments = dict(record.assignments)
            account.settle("Stable")
        case r.AssignmentFailed():
            account.settle("PreparingRebalance")
        case r.OffsetsCommitted():
            account.offsets.update({(item.topic, item.partition): item for item in record.offsets})
            account.settled_state = account.settled_state or "Empty"
        case r.OffsetsDeleted():
            for partition in record.partitions:
                del account.offsets[partition]
        case r.GroupEmptied():
            account.begin_generation(record.generation_id)
            account.join_generation_id = record.generation_id
            account.state = "Empty"
            account.rebalance_since_ms = None
            account.settle("Empty")
        case r.GroupFrozen():
            account.frozen_until_ms = record.until_ms
        case r.GroupUnfrozen():
            account.frozen_until_ms = None
        case r.LeaveGranted():
            account.leaving[record.member_id] = record.until_ms


def _complete(account: GroupAccount, record: r.GenerationCompleted, at_ms: int) -> None:
    if record.leader_id != account.leader_id:
        account.leads_since_ms = at_ms
    if not account.lacks_leader or at_ms != account.rebalance_since_ms:
        account.taken_along_from = None
    elif account.taken_along_from is None:
        account.taken_along_from = account.join_generation_id
    account.begin_generation(record.generation_id)
    account.join_generation_id = record.generation_id
    account.state = "CompletingRebalance"
    account.leader_id = record.leader_id
    account.protocol_name = record.protocol_name
    account.settled = dict(account.members)
    account.settle("CompletingRebalance")
    if account.protocol_type == LEADER_TYPE:
        account.ranks = {each: _rank(account, each, at_ms) for each in account.members}


def _rank(account: GroupAccount, member_id: str, at_ms: int) -> Rank:
    priority = decode_candidate(account.members[member_id].metadata_for(account.protocol_name)).priority
    former = account.ranks.get(member_id)
    return former if former is not None and former.priority == priority else Rank(priority, at_ms)


def _go(account: GroupAccount, member_id: str) -> None:
    account.members.pop(member_id, None)
    account.leaving.pop(member_id, None)
    if account.settled.pop(member_id, None) is not None:
        account.settle("PreparingRebalance")


def _rename(account: GroupAccount, record: r.MemberFenced, at_ms: int) -> None:
    old, new = record.member_id, record.new_member_id
    account.leaving.pop(old, None)
    if (rank := account.ranks.pop(old, None)) is not None:
        account.ranks[new] = Rank(rank.priority, at_ms)
    account.members = _renamed(account.members, old, new)
    account.numbers.pop(old, None)
    if old in account.settled:
        account.settled = _renamed(account.settled, old, new)
        account.takeovers += 1
        account.numbers[new] = account.takeovers
        if account.settled_state == "CompletingRebalance":
            account.settle("PreparingRebalance")
    if old in account.assignments:
        account.assignments[new] = account.assignments.pop(old)
    if account.leader_id == old:
        account.leader_id, account.leads_since_ms = new, at_ms


def _renamed(members: dict[str, MemberImage], old: str, new: str) -> dict[str, MemberImage]:
    return {
        new if member_id == old else member_id: replace(image, member_id=new) if member_id == old else image
        for member_id, image in members.items()
    }
