"""What a simulated run leaves behind: the calls as clients saw them (H), the journal as the store has it (W)."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rota.group.records import Entry
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
        """The highest revision of the shard that anybody had been told when this was sent."""
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
    until_ms: int


class Effect(NamedTuple):
    """A write that reached the fenced resource, with the token it brought."""

    group: GroupKey
    partition: int
    token: int
    accepted: bool
    at_ms: int


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
    limits: Limits | None = None
    """What the coordinators were configured with; None where that is not known."""
    cooperative: frozenset[GroupKey] = frozenset()
    """Groups that reach an assignment in several rebalances, one after the other."""
    epochs: list[tuple[int, int, str, int]] = field(default_factory=list)
    """Every acquisition of a shard: shard, epoch, replica, time."""
    unknown_appends: list[tuple[int, int, int]] = field(default_factory=list)
    """Writes of unknown outcome: shard, epoch, when the owner gave up on the answer."""
    releases: dict[tuple[int, int], int] = field(default_factory=dict)
    """When an owner last released a reply, by shard and epoch."""
    violations: list[str] = field(default_factory=list)
    """What was seen to be wrong while it happened."""
    sometimes: Counter[str] = field(default_factory=Counter)
    """How often each rare situation came up: a run that never met one has not tested it."""

    @property
    def rebalances(self) -> int:
        """Generations completed by a join phase, in all groups."""
        return sum(
            line.entry.record.kind == "generation_completed" for lines in self.journal.values() for line in lines
        )

    def trace_hash(self) -> str:
        """The same seed gives the same trace: every line of the journal and every answer goes into this."""
        digest = hashlib.sha256()
        for shard_id, lines in sorted(self.journal.items()):
            for line in lines:
                _feed(digest, shard_id, line)
        for call in self.calls:
            _feed(digest, call.number, call.client, call.request, call.sent_ms, call.ret_ms, call.reply, call.revision)
        for hold in self.holds:
            _feed(digest, hold)
        return digest.hexdigest()


def _feed(digest: Any, *values: object) -> None:
    digest.update(repr(values).encode())
