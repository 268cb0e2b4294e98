"""Protocol types: the meaning of a group's opaque bytes to its members."""

from __future__ import annotations

from rota.core.types.plugin import (
    Departed,
    Generation,
    JoinedWith,
    ProtocolType,
    Readable,
    ServerSide,
    Succession,
    Units,
)
from rota.core.types.registry import (
    ENTRY_POINT_GROUP,
    BrokenPlugin,
    attempt,
    describe_topics,
    has_units,
    protocol_types,
    readable_assignment,
    readable_metadata,
    register,
    register_entry_points,
    server_side,
    subscribed_topics,
    topics_debounce_ms,
    units_of,
    why_not_assigned,
    without_units,
)
from rota.core.types.topics import TopicFacts
from rota.core.types.wire_format import MalformedMetadata

__all__ = [
    "ENTRY_POINT_GROUP",
    "BrokenPlugin",
    "Departed",
    "Generation",
    "JoinedWith",
    "MalformedMetadata",
    "ProtocolType",
    "Readable",
    "ServerSide",
    "Succession",
    "TopicFacts",
    "Units",
    "attempt",
    "describe_topics",
    "has_units",
    "protocol_types",
    "readable_assignment",
    "readable_metadata",
    "register",
    "register_entry_points",
    "server_side",
    "subscribed_topics",
    "topics_debounce_ms",
    "units_of",
    "why_not_assigned",
    "without_units",
]
