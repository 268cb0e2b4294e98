"""What HTTP shows beyond the protocol's messages: journal lines, owners of shards, and the queries for them."""

from __future__ import annotations

from typing import Any

from rota.api.beginning import EARLIEST, After
from rota.protocol.ids import NO_SHARD
from rota.protocol.limits import Limits
from rota.wire.fields import MAX_SAFE_INTEGER, AnyObject, Code, Integer, Text, integer_from_text
from rota.wire.records import Entry, ListOf, Record, given
from rota.wire.requests import REASON

_TEXT = Text(2**31)
_NUMBER = Integer()
_PORT = Integer(0, 65_535)
_OWN_PORT = "The owner's port that no other worker shares, at the host that was called, or 0:"
MAX_EVENTS = 1_000
_PLACE = (
    Entry("revision", _NUMBER, doc="The shard's last journal entry that this answer reflects."),
    Entry("epoch", _NUMBER, doc="The epoch of the shard's owner."),
)

EVENT = Record(
    dict,
    (
        Entry("revision", _NUMBER, doc="The shard's sequence number: dense, without gaps.", attribute="seq"),
        Entry("epoch", _NUMBER, doc="The epoch of the owner that wrote it."),
        Entry("at_ms", _NUMBER, doc="Milliseconds since 1970 at the owner."),
        Entry("namespace", _TEXT),
        Entry("group_id", _TEXT),
        Entry("generation_id", Integer(-1)),
        Entry("kind", _TEXT, doc="`rebalance_started`, `generation_completed`, `member_expired` …"),
        Entry("reason", _TEXT, doc="Why, for people."),
        Entry(
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
        Entry(
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
        Entry("shard", Integer(NO_SHARD, 2**31 - 1), doc="The shard of the journal; -1: changes of API tokens."),
        Entry("after", _After(), 0, f"Lines with a higher revision; {_EARLIEST}"),
        Entry("limit", Integer(1, MAX_EVENTS), 100, "Most lines to answer."),
    ),
)

COORDINATOR = Record(
    dict,
    (
        Entry("shard_id", _NUMBER),
        Entry("replica_id", _TEXT),
        Entry("address", _TEXT, doc="Where the owner can be reached."),
        Entry("epoch", _NUMBER, doc="Counts the owners that the shard has had."),
        Entry("lease_left_ms", Integer(-MAX_SAFE_INTEGER), doc="0 or less: the lease is over, no replica owns it."),
        Entry("revision", _NUMBER, doc="The end of the shard's journal.", attribute="last_seq"),
        Entry("reported_by", _TEXT, "", "The replica that answers: the owner itself where that is the same."),
        Entry("grpc_address", _TEXT, "", "Where it can be reached over gRPC; empty where it cannot."),
        Entry("worker_http_port", _PORT, 0, f"{_OWN_PORT} for HTTP."),
        Entry("worker_grpc_port", _PORT, 0, f"{_OWN_PORT} for gRPC."),
    ),
    complete=True,
    title="Coordinator",
)

REMOVE_MEMBER_QUERY = given(dict, (Entry("reason", REASON, "", "Why, for people and the journal."),))

JOURNAL_REPLY = Record(dict, (Entry("events", ListOf(EVENT, MAX_EVENTS)), *_PLACE), complete=True, title="JournalReply")

HEARTBEAT_BATCH_REPLY = Record(
    dict,
    (
        Entry(
            "members",
            ListOf(
                Record(
                    dict,
                    (
                        Entry("member_id", _TEXT),
                        Entry("error", Code()),
                        Entry("generation_id", Integer(-1)),
                        Entry("state", _TEXT),
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
