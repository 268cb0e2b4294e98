"""What a simulated run leaves behind: the calls as clients saw them (H), the journal as the store has it (W)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from rota.core.group.records import Entry
from rota.protocol.limits import Limits
from rota.protocol.messages import Reply, Request

GroupKey = tuple[str, str]


class Landed(NamedTuple):
    """One line of the journal with the simulator's knowledge of it. Times are the world's, not a replica's."""

    seq: int
    epoch: int
    entry: Entry
    decided_ms: int
    landed_ms: int
    replica_id: str


class Call:
    """One request of one client, from sending to the end. `reply` None: the client never learnt the outcome."""

    __slots__ = ("client", "epoch", "floor", "number", "reply", "request", "ret_ms", "revision", "sent_ms", "shard_id")

    def __init__(self, number: int, client: str, request: Request, shard_id: int, sent_ms: int, floor: int) -> None:
        self.number = number
        self.client = client
        self.request = request
        self.shard_id = shard_id
        self.sent_ms = sent_ms
        self.floor = floor
        """The highest revision of the shard in any answer before this was sent."""
        self.ret_ms = -1
        self.reply: Reply | None = None
        self.revision = 0
        self.epoch = 0


class Hold(NamedTuple):
    """A member could act on these partitions from `from_ms` up to `until_ms`, by its own reckoning."""

    group: GroupKey
    client: str
    group_instance_id: str | None
    member_id: str
    generation_id: int
    partitions: tuple[int, ...]
    from_ms: int
    token: int
    until_ms: int


class Effect(NamedTuple):
    """A write that reached the fenced resource, with the token it brought and the member that sent it."""

    group: GroupKey
    partition: int
    token: int
    accepted: bool
    at_ms: int
    member_id: str


class UserCommit(NamedTuple):
    """Progress that a user's own transaction has committed, past the owner of the shard."""

    group: GroupKey
    shard_id: int
    revision: int
    """The journal's last line when it was committed."""
    generation_id: int
    member_id: str
    topic: str
    partition: int
    offset: int
    at_ms: int


class ClockStep(NamedTuple):
    """The database's clock was set."""

    at_ms: int
    by_ms: int


class Stall(NamedTuple):
    """An owner found its timers late, and held back those that it had set by then."""

    replica_id: str
    noticed_ms: int
    lateness_ms: int


class NemesisAct(NamedTuple):
    """One thing that the nemesis did, or that its world leaves out (`without.py`)."""

    at_ms: int
    kind: str
    is_left_out: bool


class Departure(NamedTuple):
    """A client died without a word; its member must go within its session."""

    group: GroupKey
    member_id: str
    at_ms: int


@dataclass(slots=True)
class History:
    """Everything that the checks look at."""

    calls: list[Call] = field(default_factory=list)
    journal: dict[int, list[Landed]] = field(default_factory=dict)
    holds: list[Hold] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    departures: list[Departure] = field(default_factory=list)
    user_commits: list[UserCommit] = field(default_factory=list)
    acts: list[NemesisAct] = field(default_factory=list)
    """The number of an act is its place here."""
    on_the_way: frozenset[tuple[GroupKey, int, int]] = frozenset()
    """Group, partition and offset of user commits that no owner had taken in when the run ended."""
    liveness_faults: list[tuple[int, int]] = field(default_factory=list)
    """Spans of time in which the liveness store lost or withheld something."""
    clock_steps: list[ClockStep] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    limits: Limits | None = None
    """What the coordinators were configured with; None where that is not known."""
    epochs: list[tuple[int, int, str, int]] = field(default_factory=list)
    """Every acquisition of a shard: shard, epoch, replica, time."""
    unknown_appends: list[tuple[int, int, int]] = field(default_factory=list)
    """Writes of unknown outcome: shard, epoch, when the owner gave up on the answer."""
    releases: dict[tuple[int, int], int] = field(default_factory=dict)
    """When an owner last released a reply, by shard and epoch."""
    notes: list[tuple[int, str, str, object]] = field(default_factory=list)
    """What programs did and were notified of, for the trace: time, program, event and details."""
    violations: list[str] = field(default_factory=list)
    """Violations seen during the run."""
    sometimes: Counter[str] = field(default_factory=Counter)
    """How often each rare situation came up: a run that never met one has not tested it."""

    def stepped_ahead_ms(self, since_ms: int) -> int:
        """How far the database's clock was set forwards since then."""
        return sum(max(step.by_ms, 0) for step in self.clock_steps if step.at_ms >= since_ms)

    @property
    def rebalances(self) -> int:
        """Generations completed by a join phase, in all groups."""
        return sum(
            line.entry.record.kind == "generation_completed" for lines in self.journal.values() for line in lines
        )
