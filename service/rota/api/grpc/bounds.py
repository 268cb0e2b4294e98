"""The bounds of each port for gRPC: what a caller costs before it has proven its identity."""

from __future__ import annotations

from typing import Any

UNRECEIVED_BYTES = 16 * 1024
HANDSHAKE_TIMEOUT_MS = 5_000
"""For TLS, and then for HTTP/2's settings."""
IDLE_TIMEOUT_MS = 75_000
"""As long as HTTP keeps a connection between two requests."""
ANY_NUMBER = 1_000_000


def bounded_options(
    *,
    streams: int,
    message_bytes: int,
    keepalive_ms: int,
    keepalive_timeout_ms: int,
    most_connections: int = ANY_NUMBER,
) -> list[tuple[str, Any]]:
    """Options of a server whose connections carry so many streams at a time.

    A stream that is not received holds `UNRECEIVED_BYTES`, whatever the network could carry. A connection is closed
    unless it has made itself known as one of HTTP/2 in time, and when it has carried no rpc for long. Clients may ping
    often (a dead server should be noticed soon).
    """
    return [
        ("grpc.max_allowed_incoming_connections", most_connections),
        ("grpc.max_concurrent_streams", streams),
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", UNRECEIVED_BYTES),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
        ("grpc.max_connection_idle_ms", IDLE_TIMEOUT_MS),
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_timeout_ms),
        # The first bounds what the other kernel leaves unacknowledged, this one the answer of its process.
        ("grpc.http2.ping_timeout_ms", keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.max_pings_without_data", 0),
    ]
