"""Listings: one page of the pages that several shards, or several replicas, give."""

from __future__ import annotations

from collections.abc import Sequence

from rota.group.topics import version_of_all
from rota.protocol.messages import ListReply, ListTopicsReply


def merge_groups(replies: Sequence[ListReply], limit: int) -> ListReply:
    """One page of several shards' pages."""
    groups = sorted((g for reply in replies for g in reply.groups), key=lambda group: group.group_id)
    more = len(groups) > limit or any(reply.more for reply in replies)
    return ListReply(groups=tuple(groups[:limit]), more=more)


def merge_topics(replies: Sequence[ListTopicsReply], limit: int) -> ListTopicsReply:
    """One page of several shards' pages."""
    topics = sorted((t for reply in replies for t in reply.topics), key=lambda topic: topic.topic)
    more = len(topics) > limit or any(reply.more for reply in replies)
    version = version_of_all(reply.version for reply in replies)
    return ListTopicsReply(topics=tuple(topics[:limit]), more=more, version=version)
