"""What clients recorded, judged without the simulator's checks: commits and fences by `linearizable`, and watches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rota.client.transports.port import Answer, GroupEvent
from rota.core.replica.ports import JournalEvent
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import generation_of
from rota.protocol.messages import (
    CommitOffsets,
    FenceReply,
    FetchOffsets,
    FetchReply,
    Heartbeat,
    Request,
    SyncGroup,
    VerifyFence,
)
from tests.faults.linearizable import NEVER, Operation, violation

GroupKey = tuple[str, str]


@dataclass(slots=True)
class Exchange:
    """A request, and the answer if there was one. `start` and `end` are numbers of one sequence."""

    client: str
    request: Request
    start: int
    end: int = NEVER
    answer: Answer | None = None


@dataclass(slots=True)
class WatchStream:
    """One stream of a watch, from its request until it broke or was closed."""

    client: str
    group: GroupKey
    after_revision: int | None
    events: list[GroupEvent] = field(default_factory=list)


# --- commits and fences ------------------------------------------------------------------------------


def check_commits(exchanges: Iterable[Exchange]) -> Iterator[str]:
    """LIN: some order of a group's operations explains all answers, and respects the order in real time."""
    by_group = defaultdict[GroupKey, list[Operation]](list)
    for exchange in exchanges:
        group_id = getattr(exchange.request, "group_id", "")
        by_group[exchange.request.namespace, group_id] += _operations(exchange)
    for (_, group_id), operations in by_group.items():
        if found := violation(operations):
            yield f"LIN {group_id}: {found}"


def _operations(exchange: Exchange) -> Iterator[Operation]:
    """What an exchange says of its group. An answer without an epoch came from no owner, so it says nothing."""
    request, answer = exchange.request, exchange.answer
    by_owner = answer is not None and answer.epoch > 0
    error = answer.reply.error if answer is not None else None
    name = f"{exchange.client}'s {type(request).__name__} {exchange.start}"
    if isinstance(request, CommitOffsets):
        yield _commit(name, exchange, request)
    elif answer is None or not by_owner or error is not ErrorCode.NONE:
        return
    elif isinstance(request, FetchOffsets) and isinstance(answer.reply, FetchReply):
        found = {(each.topic, each.partition): each for each in answer.reply.offsets}
        marks = {partition: each.metadata if each.offset >= 0 else "" for partition, each in found.items()}
        yield Operation(name, exchange.start, exchange.end, marks=marks)
    elif isinstance(request, Heartbeat | SyncGroup) and not getattr(answer.reply, "pending", False):
        yield Operation(name, exchange.start, exchange.end, generation_id=request.generation_id)
    elif isinstance(request, VerifyFence) and isinstance(answer.reply, FenceReply):
        generation_id = generation_of(answer.reply.fencing_token)
        yield Operation(name, exchange.start, exchange.end, generation_id=generation_id)


def _commit(name: str, exchange: Exchange, request: CommitOffsets) -> Operation:
    answer = exchange.answer
    error = answer.reply.error if answer is not None else None
    is_rejected = answer is not None and error is not ErrorCode.NONE and answer.epoch > 0
    is_unknown = error is not ErrorCode.NONE and not is_rejected
    return Operation(
        f"{name} in generation {request.generation_id}",
        exchange.start,
        NEVER if is_unknown else exchange.end,
        is_write=True,
        marks={(item.topic, item.partition): item.metadata for item in request.offsets},
        generation_id=-1 if is_rejected else request.generation_id,
        above=request.generation_id if is_rejected and error is ErrorCode.ILLEGAL_GENERATION else -1,
        is_rejected=is_rejected,
    )


# --- watches -----------------------------------------------------------------------------------------


def check_watches(streams: Iterable[WatchStream], journal: Iterable[JournalEvent]) -> Iterator[str]:
    """WATCH: each stream shows its group's lines, in order, each once, and each line between its first and its last.

    A stream that is resumed after a revision begins with the first line above it.
    """
    lines = defaultdict[GroupKey, dict[int, JournalEvent]](dict)
    for line in journal:
        lines[line.namespace, line.group_id][line.seq] = line
    for stream in streams:
        if stream.events:
            yield from (
                f"WATCH {stream.group[1]}, {stream.client}: {why}" for why in _wrong(stream, lines[stream.group])
            )


def _wrong(stream: WatchStream, lines: dict[int, JournalEvent]) -> Iterator[str]:
    last = stream.after_revision
    for event in stream.events:
        if last is not None and event.revision <= last:
            yield f"revision {event.revision} after {last}"
        last = event.revision
        line = lines.get(event.revision)
        if line is None:
            yield f"revision {event.revision} is not in the journal"
        elif _shown(event) != (line.at_ms, line.generation_id, line.kind, line.reason):
            yield f"revision {event.revision} is a {line.kind} in the journal, and was shown as {_shown(event)}"
    seen = {event.revision for event in stream.events}
    first = stream.events[0].revision - 1 if stream.after_revision is None else stream.after_revision
    if missing := sorted(revision for revision in lines if first < revision < max(seen) and revision not in seen):
        yield f"revisions are missing: {missing[:5]}"


def _shown(event: GroupEvent) -> tuple[int, int, str, str]:
    return round(event.at * 1000), event.generation_id, event.kind, event.reason


def check_holders(holders: Iterable[tuple[GroupKey, int, int, str]]) -> Iterator[str]:
    """HOLDER: no two members ever hold the same partition with the same fencing token."""
    known = dict[tuple[GroupKey, int, int], str]()
    for group, token, partition, member_id in holders:
        holder = known.setdefault((group, token, partition), member_id)
        if holder != member_id:
            yield f"HOLDER {group[1]}: {holder} and {member_id} hold {partition} with token {token}"
