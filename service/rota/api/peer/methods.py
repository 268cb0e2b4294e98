"""The rpcs between replicas: their names, and how journal events travel. Bodies are envelopes, not protobuf."""

from __future__ import annotations

import os

import msgspec
from msgspec import Struct

from rota.protocol.errors import LinesPruned, NotInJournal, ReaderIsAhead
from rota.protocol.values import Int64

SERVICE = "rota.internal.v1.Peer"
CALL = f"/{SERVICE}/Call"
HEARTBEATS = f"/{SERVICE}/Heartbeats"
WATCH = f"/{SERVICE}/Watch"
HELD = f"/{SERVICE}/Held"
RELEASED = f"/{SERVICE}/Released"
TOPICS_CHANGED = f"/{SERVICE}/TopicsChanged"

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""A request of 8 MiB, as JSON, in which one byte of a text may take six, and room to spare."""

CALLS_OF_A_CONNECTION = 50
"""At a time. gRPC keeps up to 40 KB of each until a busy event loop has refused it, so few bound what strangers cost.

The calls of members that wait for a rebalance use further connections.
"""

CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # Channels to the same peer would share a connection otherwise.
    # Answers have no bound, as those to clients have none: a description of 10,000 members may take any size.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A peer that is cut off is noticed, and what waits there given up, in time for clients to ask elsewhere within the
    # shortest rebalance timeout. Three packets lost in a row are no cut: TCP has sent them again by then.
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.keepalive_timeout_ms", 1_500),
    # The first bounds what the other kernel leaves unacknowledged, this one the answer of the process: else a minute.
    ("grpc.http2.ping_timeout_ms", 1_500),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A restarted peer is back at once; the default back-off grows to minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # The least is also the most that one attempt to connect may take: a peer that is cut off answers nothing at all.
    ("grpc.min_reconnect_backoff_ms", 500),
    # Peers are inside of the network that `http_proxy` is the way out of. A proxy for gRPC is meant, if there is one.
    ("grpc.enable_http_proxy", int("grpc_proxy" in os.environ)),
)
PEER_NAME = "rota-peer"
"""What every replica's certificate is for: addresses of replicas come and go."""
TLS_CHANNEL_OPTIONS = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", PEER_NAME))


class Watch(Struct, frozen=True):
    """A watch of a group, after a revision or, with None, from now on."""

    namespace: str
    group_id: str
    after_revision: Int64 | None


class Claims(Struct, frozen=True):
    """The epochs of shards that a replica may hold."""

    replica_id: str
    epochs: dict[int, Int64]


class _Refusal(Struct, array_like=True):
    after_revision: Int64
    first_revision: Int64
    last_revision: Int64 | None = None
    incarnation: str = ""


def pack_refusal(refusal: NotInJournal) -> str:
    """The message of the status OUT_OF_RANGE, with which a peer ends a watch."""
    places = refusal.after_revision, refusal.first_revision, refusal.last_revision, refusal.incarnation
    return msgspec.json.encode(_Refusal(*places)).decode()


def unpack_refusal(message: str) -> NotInJournal | None:
    """None for what no replica sends."""
    try:
        said = msgspec.json.decode(message, type=_Refusal)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if said.last_revision is None:
        return LinesPruned(said.after_revision, said.first_revision)
    return ReaderIsAhead(said.after_revision, said.first_revision, said.last_revision, said.incarnation)
