"""The answers of a server that may be killed at any moment, and the rules that hold afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
Partition = tuple[str, int]
"""(group_id, partition)"""


@dataclass(frozen=True, slots=True)
class AckedJoin:
    """A join that was answered with a generation. `at_least` is the highest one known before it was sent."""

    group_id: str
    member_id: str
    generation_id: int
    leader_id: str
    members: frozenset[str]
    at_least: int
    revision: int
    epoch: int


@dataclass(frozen=True, slots=True)
class AckedSync:
    """A sync that was answered with an assignment."""

    group_id: str
    member_id: str
    generation_id: int
    assignment: str
    revision: int


@dataclass(frozen=True, slots=True)
class AckedLeave:
    group_id: str
    member_id: str
    revision: int


@dataclass
class Progress:
    """Offsets of one partition: it has one writer, which only counts up."""

    acked: int = -1
    unknown: set[int] = field(default_factory=set)
    """Sent after `acked`, and never answered: they may have landed or not."""
    refused: set[int] = field(default_factory=set)


class History:
    """Facts as they were acknowledged."""

    def __init__(self) -> None:
        self.joins: list[AckedJoin] = []
        self.syncs: list[AckedSync] = []
        self.leaves: list[AckedLeave] = []
        self.sent: dict[tuple[str, int], dict[str, str]] = {}
        """By group and generation, what its leader sent as assignments."""
        self.progress: dict[Partition, Progress] = {}
        self.commits = 0
        self.unanswered = 0
        """Calls without a known outcome, for the server died under them."""
        self.highest: dict[str, int] = {}
        """The highest generation in any answer, by group."""
        self.revisions: dict[str, int] = {}
        """The highest revision of an answer, by group."""

    @property
    def facts(self) -> int:
        """How many facts were acknowledged."""
        return len(self.joins) + len(self.syncs) + len(self.leaves) + self.commits

    def summary(self) -> str:
        """The facts in figures."""
        counts = (len(self.joins), len(self.syncs), self.commits, len(self.leaves))
        acked = "acknowledged {} joins, {} syncs, {} commits, {} leaves".format(*counts)
        return f"{acked}, unanswered {self.unanswered}"

    def joined(self, join: AckedJoin) -> None:
        self.joins.append(join)
        self.highest[join.group_id] = max(join.generation_id, self.highest.get(join.group_id, 0))
        self.saw(join.group_id, join.revision)

    def saw(self, group_id: str, revision: int) -> None:
        """Any answer about the group reflects this revision."""
        self.revisions[group_id] = max(revision, self.revisions.get(group_id, 0))

    def committed(self, partition: Partition, offset: int) -> None:
        progress = self.progress[partition]
        progress.acked = offset
        progress.unknown = {sent for sent in progress.unknown if sent > offset}
        self.commits += 1


@dataclass
class Generation:
    """A generation as the journal has it. Static members that came back stand in it under all their ids."""

    revision: int
    leaders: set[str]
    members: set[str]
    assignments: dict[str, str] | None = None


class GroupJournal:
    """A group's generations, of its lines in the journal."""

    def __init__(self, events: list[Event]) -> None:
        self.generations: dict[int, Generation] = {}
        self.opened: list[int] = []
        """Every generation number in the order in which they were opened."""
        for event in events:
            self._fold(event["kind"], event["revision"], event["payload"])

    def _fold(self, kind: str, revision: int, payload: dict[str, Any]) -> None:
        match kind:
            case "generation_completed":
                members = set(payload["member_ids"])
                self.opened.append(payload["generation_id"])
                self.generations[payload["generation_id"]] = Generation(revision, {payload["leader_id"]}, members)
            case "group_emptied":
                self.opened.append(payload["generation_id"])
            case "assignment_synced":
                self.generations[payload["generation_id"]].assignments = dict(payload["assignments"])
            case "member_fenced" if self.generations:
                self._replace(self.generations[max(self.generations)], payload["member_id"], payload["new_member_id"])

    @staticmethod
    def _replace(generation: Generation, old_id: str, new_id: str) -> None:
        for ids in (generation.leaders, generation.members):
            if old_id in ids:
                ids.add(new_id)
        if generation.assignments and old_id in generation.assignments:
            generation.assignments[new_id] = generation.assignments[old_id]


def violations(
    history: History, journal: dict[str, list[Event]], offsets: dict[Partition, int], ends: dict[str, int]
) -> Iterator[str]:
    """Everything that was acknowledged and is not so. `ends` is where the journal of each group's shard ends."""
    groups = {group_id: GroupJournal(events) for group_id, events in journal.items()}
    for group_id, revision in history.revisions.items():
        if revision > ends[group_id]:
            yield f"{group_id}: revision {revision} was answered, but its journal ends at {ends[group_id]}"
    for group_id, group in groups.items():
        if any(later <= earlier for earlier, later in zip(group.opened, group.opened[1:], strict=False)):
            yield f"{group_id}: generations go back or repeat: {group.opened}"
    for join in history.joins:
        yield from _check_join(join, groups[join.group_id])
    for sync in history.syncs:
        yield from _check_sync(sync, groups[sync.group_id], history)
    for leave in history.leaves:
        yield from _check_leave(leave, groups[leave.group_id])
    for partition, progress in history.progress.items():
        yield from _check_progress(partition, progress, offsets.get(partition, -1))


def _check_join(join: AckedJoin, group: GroupJournal) -> Iterator[str]:
    generation = group.generations.get(join.generation_id)
    if join.generation_id < join.at_least:
        yield f"{join}: the generation went back, {join.at_least} was known before"
    if generation is None:
        yield f"{join}: the generation is lost"
        return
    if join.leader_id not in generation.leaders:
        yield f"{join}: the journal's leaders of it are {generation.leaders}"
    if join.member_id not in generation.members:
        yield f"{join}: the journal's members of it are {generation.members}"
    if not join.members <= generation.members:
        yield f"{join}: the leader was told of {join.members}, the journal says {generation.members}"
    if generation.revision > join.revision:
        yield f"{join}: was answered before its generation was written at {generation.revision}"


def _check_sync(sync: AckedSync, group: GroupJournal, history: History) -> Iterator[str]:
    generation = group.generations.get(sync.generation_id)
    if generation is None or generation.assignments is None:
        yield f"{sync}: the assignment of its generation is lost"
        return
    if generation.assignments.get(sync.member_id, "") != sync.assignment:
        yield f"{sync}: the journal says {generation.assignments.get(sync.member_id)!r}"
    sent = set(history.sent.get((sync.group_id, sync.generation_id), {}).values())
    if sync.assignment not in sent:
        yield f"{sync}: that is nothing that its leader sent: {sent}"


def _check_leave(leave: AckedLeave, group: GroupJournal) -> Iterator[str]:
    for number, generation in group.generations.items():
        if generation.revision > leave.revision and leave.member_id in generation.members:
            yield f"{leave}: it is in generation {number} again"


def _check_progress(partition: Partition, progress: Progress, stored: int) -> Iterator[str]:
    if stored < progress.acked:
        yield f"{partition}: offset {progress.acked} was acknowledged, {stored} is stored"
    if stored in progress.refused:
        yield f"{partition}: offset {stored} was refused, and is stored all the same"
    if stored > progress.acked and stored not in progress.unknown:
        yield f"{partition}: offset {stored} is stored, which nobody sent"
