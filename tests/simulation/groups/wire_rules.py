"""Rules of what one program sends: it leaves as it should, commits only forwards, and is never busy for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.client.errors import CoordinatorError, CoordinatorUnreachable
from rota.core.types.leader import PROTOCOL_TYPE, decode_candidate
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import CommitOffsets, CommitReply, JoinGroup, JoinReply, LeaveGroup, Reply, Request

if TYPE_CHECKING:
    from tests.simulation.groups.life import Life

MOST_CALLS_A_SECOND = 150

FENCED = frozenset({ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
"""A commit that was rejected so was not made, and never will be."""

Partition = tuple[str, str, int]
"""Group, topic, partition."""


def _commits_of(request: CommitOffsets) -> set[tuple[Partition, int]]:
    return {((request.group_id, item.topic, item.partition), item.offset) for item in request.offsets}


class WireRules:
    """What goes over one transport of a program."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._violation = life.world.rules.violation
        self.named: dict[str, None] = {}
        """Member ids that this life was given."""
        self.left: set[str] = set()
        """Member ids for which it has sent LeaveGroup."""
        self.committed: dict[Partition, int] = {}
        """The highest offsets that were answered. A call that it has given up may land later, and take one back."""
        self._highest: dict[Partition, int] = {}
        """The highest offsets that were sent; after a rejected commit, those that were answered."""
        self._under_way: dict[int, tuple[CommitOffsets, set[Partition]]] = {}
        self._unanswered: set[tuple[Partition, int]] = set()
        """Commits with a try that got no answer."""
        self.takeovers = 0
        """First joins as a static member: one that comes late fences its own sender, in Kafka, too."""
        self._second = 0
        self._calls = 0

    def sent(self, request: Request) -> None:
        """A request leaves by the program's own transport: those of an election within another have no rules."""
        if self._life.wire is not self:
            return
        self._count_call()
        match request:
            case JoinGroup():
                self._note_join(request)
            case LeaveGroup():
                self._note_leave(request)
            case CommitOffsets():
                self._note_commit(request)

    def tried(self, request: Request) -> None:
        """A request is refused on its way to a replica. Until its sender has the answer it cannot know that."""
        if isinstance(request, CommitOffsets):
            self._under_way[id(request)] = (request, {place for place, _ in _commits_of(request)})

    def answered(self, request: Request, reply: Reply) -> None:
        self._under_way.pop(id(request), None)
        match request, reply:
            case JoinGroup(), JoinReply() if reply.member_id:
                self.named[reply.member_id] = None
            case CommitOffsets(), CommitReply(error=ErrorCode.NONE):
                accepted = {(each.topic, each.partition) for each in reply.partitions if each.error is ErrorCode.NONE}
                for item in request.offsets:
                    if (item.topic, item.partition) in accepted:
                        place = (request.group_id, item.topic, item.partition)
                        self.committed[place] = max(self.committed.get(place, -1), item.offset)
            case CommitOffsets(), CommitReply(error=error) if error in FENCED:
                for place, _ in _commits_of(request):
                    self._highest[place] = self.committed.get(place, -1)

    def concluded(self, request: Request) -> None:
        """Its sender does not wait for an answer any more."""
        if self._under_way.pop(id(request), None) is not None and isinstance(request, CommitOffsets):
            self._unanswered |= _commits_of(request)

    def _count_call(self) -> None:
        second = int(self._life.world.now_s)
        if second != self._second:
            self._second, self._calls = second, 0
        self._calls += 1
        if self._calls == MOST_CALLS_A_SECOND:
            self._violation("busy", f"{self._life.name} sends {self._calls} calls within a second")

    def _note_join(self, request: JoinGroup) -> None:
        self.takeovers += request.group_instance_id is not None and not request.member_id
        self._check_claim(request)

    def _check_claim(self, request: JoinGroup) -> None:
        """A leader that says in its join that it does not work may be followed by another candidate at once."""
        if request.protocol_type != PROTOCOL_TYPE or not self._life.bodies:
            return
        if any(decode_candidate(protocol.metadata).holding is False for protocol in request.protocols):
            text = f"{self._life.name} says in its join that it does not lead, while its body runs"
            self._violation("works-on", text)

    def _note_leave(self, request: LeaveGroup) -> None:
        self.left.update(member.member_id for member in request.members)
        life = self._life
        if life.is_static and not life.steps_aside:
            self._violation("static-leaves", f"{life.name} is static, and sends LeaveGroup")
        if life.is_closing and life.soon_answered < life.soon_asked:
            self._violation("left-too-soon", f"{life.name} sends LeaveGroup before commits that were asked for")

    def _note_commit(self, request: CommitOffsets) -> None:
        about = set()
        for item in request.offsets:
            place = (request.group_id, item.topic, item.partition)
            about.add(place)
            highest = self._highest.get(place, -1)
            if 0 <= item.offset < highest:
                text = f"{self._life.name} sends {item.offset} for {place} after it sent {highest}"
                self._violation("offset-back", text)
            self._highest[place] = max(highest, item.offset)
        self._under_way[id(request)] = (request, about)

    def check_commit_error(self, place: Partition, offset: int, error: CoordinatorError) -> None:
        """It is in doubt whether a commit was made only if a try had no answer; the fence's word is that it was not."""
        under_way = (_commits_of(request) for request, _ in self._under_way.values())
        may_be_made = (place, offset) in self._unanswered.union(*under_way)
        is_wrong = not may_be_made if isinstance(error, CoordinatorUnreachable) else self.committed.get(place) == offset
        if is_wrong:
            text = f"the commit of {offset} for {place} by {self._life.name} raised {error!r:.200}"
            self._violation("commit-error", text)

    # --- at the end ---------------------------------------------------------------------------

    def check_left(self) -> None:
        """A dynamic member that has left its block is not in its group any more, or has sent its LeaveGroup."""
        if self._life.is_static:
            return
        group = self._life.world.group()
        members = group.members if group is not None else {}
        for member_id in self.named:
            if member_id in members and member_id not in self.left:
                self._violation("not-left", f"{self._life.name} went without LeaveGroup for {member_id}")
