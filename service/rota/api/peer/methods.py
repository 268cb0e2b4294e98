"""The rpcs between replicas: their names, and how journal events travel. Bodies are envelopes, not protobuf."""

from __future__ import annotations

import dataclasses
import json
import os
from types import NoneType
from typing import Any, get_origin, get_type_hints

from rota.protocol.errors import LinesPruned, NotInJournal, ReaderIsAhead
from rota.replica.ports import JournalEvent
from rota.wire.envelopes import MalformedEnvelope, checked, list_of

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


def pack_event(event: JournalEvent) -> bytes:
    return json.dumps(dataclasses.asdict(event)).encode()


_FIELDS_OF_AN_EVENT = {name: get_origin(kind) or kind for name, kind in get_type_hints(JournalEvent).items()}


def unpack_event(data: bytes) -> JournalEvent:
    """Fields that this release does not know are of a later one, and left out. Raises `MalformedEnvelope`."""
    document = _unpack_document(data)
    try:
        event = JournalEvent(**{name: value for name, value in document.items() if name in _FIELDS_OF_AN_EVENT})
        checked([getattr(event, name) for name in _FIELDS_OF_AN_EVENT], tuple(_FIELDS_OF_AN_EVENT.values()))
    except (TypeError, ValueError) as error:
        raise MalformedEnvelope("not an event") from error
    return event


def pack_refusal(refusal: NotInJournal) -> str:
    """The message of the status OUT_OF_RANGE, with which a peer ends a watch."""
    end = [] if refusal.last_revision is None else [refusal.last_revision, refusal.incarnation]
    return json.dumps([refusal.after_revision, refusal.first_revision, *end])


def unpack_refusal(message: str) -> NotInJournal | None:
    """None for what no replica sends."""
    try:
        after_revision, first_revision, *end = json.loads(message)
        if not end:
            return LinesPruned(*checked([after_revision, first_revision], (int, int)))
        return ReaderIsAhead(*checked([after_revision, first_revision, *end], (int, int, int, str)))
    except (TypeError, ValueError, RecursionError):
        return None


def pack_document(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


def unpack_watch(data: bytes) -> tuple[str, str, int | None]:
    """Namespace, group and revision of a watch, None for what happens from now on; or `MalformedEnvelope`."""
    document = _unpack_document(data)
    try:
        named = checked([document.get("namespace"), document.get("group_id")], (str, str))
        (after,) = checked([document.get("after_revision")], ((int, NoneType),))
    except (TypeError, ValueError) as error:
        raise MalformedEnvelope("not a watch") from error
    return named[0], named[1], after


def unpack_namespaces(data: bytes) -> list[str]:
    """The namespaces with changed topics; raises `MalformedEnvelope`."""
    namespaces = _unpack_document(data).get("namespaces")
    if type(namespaces) is not list or not all(type(each) is str for each in namespaces):
        raise MalformedEnvelope("not a list of namespaces")
    return namespaces


def unpack_claims(data: bytes) -> tuple[str, dict[int, int]]:
    """A replica's id, and the epochs of shards that it may hold; raises `MalformedEnvelope`."""
    document = _unpack_document(data)
    replica_id, pairs = document.get("replica_id"), document.get("epochs")
    try:
        (checked_id,) = checked([replica_id], (str,))
        return checked_id, dict(checked(pair, (int, int)) for pair in list_of(pairs))
    except (TypeError, ValueError) as error:
        raise MalformedEnvelope("not claims") from error


def unpack_held(data: bytes) -> list[int]:
    """The shards that a replica holds; raises `MalformedEnvelope`."""
    shard_ids = _unpack_document(data).get("held")
    try:
        return checked(shard_ids, (int,) * len(list_of(shard_ids)))
    except (TypeError, ValueError) as error:
        raise MalformedEnvelope("not a list of shards") from error


def _unpack_document(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedEnvelope(f"not a document: {type(error).__name__}") from error
    if type(document) is not dict:
        raise MalformedEnvelope("not a document")
    return document
