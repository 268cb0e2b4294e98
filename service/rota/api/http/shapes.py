"""What HTTP shows beyond the protocol's messages: journal lines, owners of shards, and the queries for them."""

from __future__ import annotations

from typing import Any

from rota.api.beginning import EARLIEST, After
from rota.protocol.ids import NO_SHARD
from rota.protocol.limits import MAX_SAFE_INTEGER, Limits
from rota.wire.fields import AnyObject, Code, Integer, Text, integer_from_text
from rota.wire.records import ListOf, ObjectShape, Property, given
from rota.wire.requests import REASON

_TEXT = Text(2**31)
_NUMBER = Integer()
_PORT = Integer(0, 65_535)
_OWN_PORT = "The owner's port that no other worker shares, at the host that was called, or 0:"
MAX_EVENTS = 1_000
_PLACE = (
    Property("revision", _NUMBER, doc="The shard's last journal entry that this answer reflects."),
    Property("epoch", _NUMBER, doc="The epoch of the shard's owner."),
)

EVENT = ObjectShape(
    dict,
    (
        Property("revision", _NUMBER, doc="The shard's sequence number: dense, without gaps.", attribute="seq"),
        Property("epoch", _NUMBER, doc="The epoch of the owner that wrote it."),
        Property("at_ms", _NUMBER, doc="Milliseconds since 1970 at the owner."),
        Property("namespace", _TEXT),
        Property("group_id", _TEXT),
        Property("generation_id", Integer(-1)),
        Property("kind", _TEXT, doc="`rebalance_started`, `generation_completed`, `member_expired` …"),
        Property("reason", _TEXT, doc="Why, for people."),
        Property(
            "payload",
            AnyObject(),
            doc="What else belongs to this kind of event; `cause` is the code beside the reason.",
        ),
    ),
    complete=True,
    title="Event",
)


class _After:
    """A revision in a query string, or `earliest`."""

    def decode(self, value: str, limits: Limits) -> After:
        return EARLIEST if value == EARLIEST else _NUMBER.decode(integer_from_text(value), limits)

    def encode(self, value: After) -> After:
        return value

    def schema(self, limits: Limits) -> dict[str, Any]:
        return {"anyOf": [_NUMBER.schema(limits), {"const": EARLIEST}]}


_EARLIEST = f"`{EARLIEST}`: from the first line on that is not pruned."
WATCH_QUERY = given(
    dict,
    (
        Property(
            "after",
            _After(),
            None,
            f"Events with a higher revision, first the past ones; {_EARLIEST} Without it: from now on.",
        ),
    ),
)
JOURNAL_QUERY = given(
    dict,
    (
        Property("shard", Integer(NO_SHARD, 2**31 - 1), doc="The shard of the journal; -1: changes of API tokens."),
        Property("after", _After(), 0, f"Lines with a higher revision; {_EARLIEST}"),
        Property("limit", Integer(1, MAX_EVENTS), 100, "Most lines to answer."),
    ),
)

COORDINATOR = ObjectShape(
    dict,
    (
        Property("shard_id", _NUMBER),
        Property("replica_id", _TEXT),
        Property("address", _TEXT, doc="Where the owner can be reached."),
        Property("epoch", _NUMBER, doc="Counts the owners that the shard has had."),
        Property("lease_left_ms", Integer(-MAX_SAFE_INTEGER), doc="0 or less: the lease is over, no replica owns it."),
        Property("revision", _NUMBER, doc="The end of the shard's journal.", attribute="last_seq"),
        Property("reported_by", _TEXT, "", "The replica that answers: the owner itself where that is the same."),
        Property("grpc_address", _TEXT, "", "Where it can be reached over gRPC; empty where it cannot."),
        Property("worker_http_port", _PORT, 0, f"{_OWN_PORT} for HTTP."),
        Property("worker_grpc_port", _PORT, 0, f"{_OWN_PORT} for gRPC."),
    ),
    complete=True,
    title="Coordinator",
)

REMOVE_MEMBER_QUERY = given(dict, (Property("reason", REASON, "", "Why, for people and the journal."),))

JOURNAL_REPLY = ObjectShape(
    dict, (Property("events", ListOf(EVENT, MAX_EVENTS)), *_PLACE), complete=True, title="JournalReply"
)

HEARTBEAT_BATCH_REPLY = ObjectShape(
    dict,
    (
        Property(
            "members",
            ListOf(
                ObjectShape(
                    dict,
                    (
                        Property("member_id", _TEXT),
                        Property("error", Code()),
                        Property("generation_id", Integer(-1)),
                        Property("state", _TEXT),
                        *_PLACE,
                    ),
                    complete=True,
                ),
                "group_max_size",
            ),
            doc="One line per member of the request, in its order.",
        ),
        *_PLACE,
    ),
    complete=True,
    title="HeartbeatBatchReply",
)

NO_QUERY = given(dict, ())
"""The query string of a route that takes no parameters."""
