"""What one command comes to: facts to make durable, timers to set, replies to release, in that order."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from rota.group.apply import apply
from rota.group.gaps import GapCount
from rota.group.records import Entry, Record
from rota.group.state import Group, Member
from rota.protocol.messages import Reply


class TimerKind(StrEnum):
    SESSION = "session"
    """A member's session may be over."""
    JOIN = "join"
    """The initial delay or the rebalance timeout of a join phase."""
    SYNC = "sync"
    """The rebalance timeout, counted from the completed join phase: who has not synced is removed."""
    PENDING = "pending"
    """A pending id was not used in time."""
    ASSIGN = "assign"
    """The server is to assign this generation: a wish to the runtime, see `assigning.py`. Nothing in the core rings."""


class Timer(NamedTuple):
    """Ask to be woken at `at_ms`. Timers are never cancelled: one that is out of date does nothing."""

    kind: TimerKind
    namespace: str
    group_id: str
    member_id: str
    at_ms: int


class Result:
    """The outcome of one command or timer.

    `records` are already folded into the group that decided them; nobody outside may learn of them
    before the store has them. `reason` says in words what happened, empty where nothing did.
    `heard` collects whose session began or stopped, where replicas tell each other; it outlives the result.
    """

    __slots__ = ("heard", "now_ms", "reason", "records", "replies", "timers")

    def __init__(self, now_ms: int, heard: dict[Member, Group] | None = None) -> None:
        self.now_ms = now_ms
        self.heard = heard
        self.records: list[Entry] = []
        self.timers: list[Timer] = []
        self.replies: list[tuple[int, Reply]] = []
        self.reason = ""

    def record(self, group: Group, record: Record) -> None:
        """Fold a fact into the group and keep it for the journal."""
        apply(group, record, self.now_ms)
        self.records.append(Entry(group.namespace, group.group_id, group.generation_id, self.now_ms, record))

    def reply(self, call: int, reply: Reply) -> None:
        self.replies.append((call, reply))

    def set_timer(self, kind: TimerKind, group: Group, member_id: str, at_ms: int) -> None:
        self.timers.append(Timer(kind, group.namespace, group.group_id, member_id, at_ms))

    def hear(self, group: Group, member: Member) -> None:
        """The member shows that it lives: count the gap since it last did, and start its session timer afresh.

        While a call of its is parked, that call shows it. This is the hottest path of all, so it is written out.
        """
        deadline_ms = member.session_deadline_ms
        if deadline_ms is None:
            return
        now_ms, timeout_ms = self.now_ms, member.image.session_timeout_ms
        if member.gaps is None:
            member.gaps = GapCount(now_ms)
        member.gaps.add(now_ms - deadline_ms + timeout_ms)
        self.set_session_deadline(group, member, now_ms + timeout_ms)
        if self.heard is not None:
            self.heard[member] = group

    def renew_session(self, group: Group, member: Member) -> None:
        """Start the member's session timer afresh.

        A timer that rings before the new deadline is left alone: when it rings it is set again. So a
        heartbeat costs an assignment, not a timer.
        """
        self.set_session_deadline(group, member, self.now_ms + member.image.session_timeout_ms)
        if self.heard is not None:
            self.heard[member] = group

    def set_session_deadline(self, group: Group, member: Member, deadline_ms: int) -> None:
        """Let the session end then, and see to a timer that rings by then."""
        member.session_deadline_ms = deadline_ms
        armed_ms = member.session_armed_ms
        if armed_ms is None or armed_ms > deadline_ms:
            member.session_armed_ms = deadline_ms
            self.set_timer(TimerKind.SESSION, group, member.member_id, deadline_ms)

    def stop_session(self, group: Group, member: Member) -> None:
        """A parked call proves from here on that the member lives."""
        member.session_deadline_ms = None
        if self.heard is not None:
            self.heard[member] = group
