"""What the coordinator itself understands of a protocol type's metadata, which is otherwise opaque to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from rota.types import consumer
from rota.types.wire_format import MalformedMetadata


def _consumer_topics(metadata: bytes) -> frozenset[str]:
    return frozenset(consumer.decode_subscription(metadata).topics)


_TOPICS_OF: Mapping[str, Callable[[bytes], frozenset[str]]] = MappingProxyType(
    {consumer.PROTOCOL_TYPE: _consumer_topics},
)


def subscribed_topics(protocol_type: str, metadata: bytes) -> frozenset[str] | None:
    """The topics that a member with this metadata subscribes to: their offsets must neither expire nor be deleted.

    None where that cannot be said: the type has no notion of topics, or the bytes are malformed.
    """
    topics_of = _TOPICS_OF.get(protocol_type)
    if topics_of is None:
        return None
    try:
        return topics_of(metadata)
    except MalformedMetadata:
        return None
