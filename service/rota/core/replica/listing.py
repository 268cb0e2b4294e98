"""Requests to all shards: one answer of those that several shards, or several replicas, give; complete or refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from rota.core.replica.ports import Answer
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import ForgetTopic, ListGroups, ListReply, Reply, TopicReply

NOT_ALL = "not every shard is loaded"
"""A list of a part would look like the whole."""


Listed: TypeAlias = ListGroups | ForgetTopic
"""Requests to every shard."""


def page_of_shards(request: Listed, parts: Mapping[int, Reply]) -> Answer:
    """What one replica lists, of the pages of its shards."""
    return Answer(_merged(request, list(parts.values())), shards=tuple(parts))


def page_of_all(request: Listed, answers: Sequence[Answer], shard_count: int) -> Answer:
    """What all replicas list.

    The page is complete only if each shard is in one answer. A shard may be in none, if its owner has released it and
    the next one is not known yet; or in two, if it has moved between two answers.
    """
    failed = next((answer for answer in answers if answer.reply.error is not ErrorCode.NONE), None)
    if failed is not None:
        return Answer(failed.reply)
    if sorted(shard_id for answer in answers for shard_id in answer.shards) != list(range(shard_count)):
        return not_all(request)
    return Answer(_merged(request, [answer.reply for answer in answers]))


def not_all(request: Listed) -> Answer:
    """The refusal of a page that would lack some shards."""
    return Answer(refuse(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NOT_ALL))


def _merged(request: Listed, replies: Sequence[Reply]) -> Reply:
    """One page of several pages."""
    if isinstance(request, ListGroups):
        return _groups_of([r for r in replies if isinstance(r, ListReply)], request.limit)
    return TopicReply(topic=request.topic, groups=sum(r.groups for r in replies if isinstance(r, TopicReply)))


def _groups_of(replies: Sequence[ListReply], limit: int) -> ListReply:
    groups = sorted((g for reply in replies for g in reply.groups), key=lambda group: group.group_id)
    page = tuple(groups[:limit])
    more = len(groups) > limit or any(reply.next_after is not None for reply in replies)
    return ListReply(next_after=page[-1].group_id if more else None, groups=page)
