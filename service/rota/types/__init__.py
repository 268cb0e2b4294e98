"""Protocol types: what the opaque bytes of a group mean to those who agree on them."""

from __future__ import annotations

from rota.types.registry import subscribed_topics
from rota.types.wire_format import MalformedMetadata

__all__ = ["MalformedMetadata", "subscribed_topics"]
