"""What one command comes to: facts to make durable, timers to set, replies to release, in that order."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from rota.group.records import Entry
from rota.group.state import Group, Member
from rota.protocol.messages import Reply


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
    log of the process, empty where there is none.
    """

    __slots__ = ("now_ms", "reason", "records", "replies", "seen", "timers", "warning")

    def __init__(self, now_ms: int, seen: dict[Member, Group] | None = None) -> None:
        # Written out: one is made for each heartbeat, and a dataclass with default factories takes half as long again.
        self.now_ms = now_ms
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
