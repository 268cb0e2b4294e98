"""What HTTP shows beyond the protocol's messages: journal lines, owners of shards, and the queries for them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from rota.api.beginning import EARLIEST, After
from rota.protocol.errors import ErrorCode
from rota.protocol.ids import NO_SHARD
from rota.protocol.limits import MAX_SAFE_INTEGER
from rota.protocol.values import Reason, Via, Within, doc
from rota.replica.ports import JournalEvent, ShardOwner
from rota.wire.shapes import Shape, invalid

MAX_EVENTS = 1_000
_MAX_DIGITS = 15
_OWN_PORT = "The owner's port that no other worker shares, at the host that was called, or 0:"
_EPOCH = doc("The epoch of the shard's owner.")
_EARLIEST = f"`{EARLIEST}`: from the first line on that is not pruned."
Revision = Annotated[int, doc("The shard's last journal entry that this answer reflects.")]


class Event(Struct, frozen=True):
    """A line of the journal."""

    revision: Annotated[int, doc("The shard's sequence number: dense, without gaps.")]
    epoch: Annotated[int, doc("The epoch of the owner that wrote it.")]
    at_ms: Annotated[int, doc("Milliseconds since 1970 at the owner.")]
    namespace: str
    group_id: str
    generation_id: int
    kind: Annotated[str, doc("`rebalance_started`, `generation_completed`, `member_expired` …")]
    reason: Annotated[str, doc("Why, for people.")]
    payload: Annotated[
        dict[str, Any], doc("What else belongs to this kind of event; `cause` is the code beside the reason.")
    ]

    @classmethod
    def of(cls, line: JournalEvent) -> Event:
        place = line.namespace, line.group_id, line.generation_id
        return cls(line.seq, line.epoch, line.at_ms, *place, line.kind, line.reason, line.payload)


class JournalReply(Struct, frozen=True):
    """Lines of a shard's journal."""

    events: tuple[Event, ...]
    revision: Revision
    epoch: Annotated[int, _EPOCH]


class Coordinator(Struct, frozen=True):
    """The replica that owns a shard."""

    shard_id: int
    replica_id: str
    address: Annotated[str, doc("Where the owner can be reached.")]
    epoch: Annotated[int, doc("Counts the owners that the shard has had.")]
    lease_left_ms: Annotated[int, doc("0 or less: the lease is over, no replica owns it.")]
    revision: Annotated[int, doc("The end of the shard's journal.")]
    reported_by: Annotated[str, doc("The replica that answers: the owner itself if that is the same.")]
    grpc_address: Annotated[str, doc("Where it can be reached over gRPC; empty if it cannot.")]
    worker_http_port: Annotated[int, doc(f"{_OWN_PORT} for HTTP.")]
    worker_grpc_port: Annotated[int, doc(f"{_OWN_PORT} for gRPC.")]

    @classmethod
    def of(cls, owner: ShardOwner) -> Coordinator:
        return cls(
            owner.shard_id,
            owner.replica_id,
            owner.address,
            owner.epoch,
            owner.lease_left_ms,
            owner.last_seq,
            owner.reported_by,
            owner.grpc_address,
            owner.worker_http_port,
            owner.worker_grpc_port,
        )


class BatchedHeartbeat(Struct, frozen=True):
    """The answer to one member's heartbeat among several."""

    member_id: str
    error: ErrorCode
    generation_id: int
    state: str
    revision: Revision
    epoch: Annotated[int, _EPOCH]


class HeartbeatBatchReply(Struct, frozen=True):
    """The answers to the heartbeats of several members."""

    members: Annotated[tuple[BatchedHeartbeat, ...], doc("One line per member of the request, in its order.")]
    revision: Revision
    epoch: Annotated[int, _EPOCH]


def _read_after(text: str) -> After:
    if text == EARLIEST:
        return EARLIEST
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise invalid(f"must be an integer from 0 to {MAX_SAFE_INTEGER}, or {EARLIEST}")
    return int(text)


_AfterText = Annotated[
    Any, Via(Annotated[str, Meta(extra_json_schema={"pattern": "^([0-9]{1,15}|earliest)$"})], _read_after, str)
]


class _WatchQuery(Struct, frozen=True):
    after: Annotated[
        _AfterText | None,
        doc(f"Events with a higher revision, first the past ones; {_EARLIEST} Without it: from now on."),
    ] = None


class _JournalQuery(Struct, frozen=True):
    shard: Annotated[int, Within(NO_SHARD, 2**31 - 1), doc("The shard of the journal; -1: changes of API tokens.")]
    after: Annotated[_AfterText, doc(f"Lines with a higher revision; {_EARLIEST}")] = 0
    limit: Annotated[int, Within(1, MAX_EVENTS), doc("Most lines to answer.")] = 100


class _RemoveMemberQuery(Struct, frozen=True):
    reason: Annotated[Reason, doc("Why, for people and the journal.")] = ""


class _NoQuery(Struct, frozen=True):
    """The query string of a route that takes no parameters."""


WATCH_QUERY, JOURNAL_QUERY, REMOVE_MEMBER_QUERY, NO_QUERY = (
    Shape(query, closed=True) for query in (_WatchQuery, _JournalQuery, _RemoveMemberQuery, _NoQuery)
)
