"""The registry of topics: names with partition counts that only grow (protocol.md §3).

All topics of a namespace are in one shard: `shard_of(namespace, "")`. Its other shards have the tombstones of deleted
topics, for the progress of their groups (ADR 107).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from rota.core.group.rows import TopicRow
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import ListedTopic, ListTopics, ListTopicsReply, PutTopic, TopicReply, TopicRequest


def check_put(topic: TopicRow | None, request: PutTopic, limits: Limits) -> TopicReply | None:
    """The refusal, or None: a count is positive, bounded, and never below today's."""
    if not 1 <= request.partitions <= limits.max_topic_partitions:
        detail = f"partitions must be 1 to {limits.max_topic_partitions}"
        return TopicReply(ErrorCode.INVALID_PARTITIONS, detail=detail)
    if topic is not None and request.partitions < topic.partitions:
        detail = f"{request.topic} has {topic.partitions} partitions, and a count only grows"
        return TopicReply(ErrorCode.INVALID_PARTITIONS, detail=detail)
    return None


def no_topic(request: TopicRequest) -> TopicReply:
    detail = f"No such topic {request.topic!r} in namespace {request.namespace!r}"
    return TopicReply(ErrorCode.UNKNOWN_TOPIC, detail)


def topic_reply(topic: TopicRow) -> TopicReply:
    return TopicReply(
        topic=topic.topic, partitions=topic.partitions, attributes=dict(topic.attributes), version=version_of(topic)
    )


def version_of(topic: TopicRow) -> str:
    """The same on every owner and after every restart; another one after each change, also one that is taken back.

    The revision counts the changes of the namespace. The rest tells changes apart that have one number, because the
    store went back in between.
    """
    facts = (topic.topic, topic.partitions, topic.attributes, topic.revision)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def list_topics(topics: Iterable[TopicRow], last: TopicRow | None, request: ListTopics) -> ListTopicsReply:
    """One page of the namespace's topics, ordered by name. The version of all is that of the one that changed last."""
    known = [topic for topic in topics if topic.namespace == request.namespace and topic.partitions]
    found = sorted((topic for topic in known if topic.topic > request.after), key=lambda topic: topic.topic)
    page = tuple(
        ListedTopic(topic.topic, topic.partitions, dict(topic.attributes), version_of(topic))
        for topic in found[: request.limit]
    )
    version = version_of(last or TopicRow(request.namespace, "", 0, (), 0))
    next_after = page[-1].topic if len(found) > len(page) else None
    return ListTopicsReply(next_after=next_after, topics=page, version=version)
