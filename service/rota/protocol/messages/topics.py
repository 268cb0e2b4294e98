"""The registry of topics."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct, field

from rota.protocol.messages.base import Audited, Author, NamespaceRequest, Parkable, Reply, TopicRequest
from rota.protocol.values import (
    INTERNAL,
    After,
    Attributes,
    Int64,
    NextAfter,
    NoNul,
    PageSize,
    PartitionCount,
    Wait,
    at_most,
)

Version = Annotated[NoNul, at_most(64)]


class PutTopic(TopicRequest, Audited, frozen=True):
    """Register a topic or let it grow; a count below today's is refused with `INVALID_PARTITIONS`."""

    partitions: PartitionCount
    """May only grow."""
    attributes: Attributes = field(default_factory=dict)
    """Anything worth knowing about the topic."""
    act: Author = None
    topic_id: Annotated[Int64, INTERNAL] = 0
    """Set by the coordinator when every shard has forgotten the deleted topic of this name: see `ForgetTopic`."""


class GetTopic(TopicRequest, Parkable, frozen=True):
    """With `wait_ms`, parks while the topic is still the one that `version` says; none is a topic that is not there."""

    version: Version = ""
    """Wait until the topic is another than this; without it, until there is one."""
    wait_ms: Wait = 0
    """How long the call may stay parked. Above 50000 counts as 50000."""


class DeleteTopic(TopicRequest, Audited, frozen=True):
    """Delete a topic with the progress that groups have in it."""

    act: Author = None


class ForgetTopic(TopicRequest, frozen=True):
    """Delete the progress of all earlier topics of this name (ADR 107). The coordinator asks every shard."""

    topic_id: Int64


class ListedTopic(Struct, frozen=True):
    """A topic in a list."""

    topic: str
    partitions: Int64
    attributes: dict[str, str] = field(default_factory=dict)
    version: str = ""
    """Another one for each other content: hand it to `topicsGet` to wait for a change."""


class TopicReply(Reply, frozen=True):
    topic: str = ""
    partitions: Int64 = 0
    attributes: dict[str, str] = field(default_factory=dict)
    version: str = ""
    """Another one for each other content: hand it to `topicsGet` to wait for a change."""
    groups: Int64 = 0
    """Of a deletion: the number of groups whose progress was deleted with the topic."""
    forget_id: Annotated[Int64, INTERNAL] = 0
    """The id of the `ForgetTopic` that all shards have to carry out before the call is answered; 0: none."""


class ListTopics(NamespaceRequest, Parkable, frozen=True):
    """With `wait_ms`, parks while the namespace's topics, those of other pages included, are as `version` says."""

    after: After = field(default="", name="page_token")
    """`next_page_token` of the page before."""
    limit: PageSize = field(default=1_000, name="page_size")
    """Most entries to answer."""
    version: Version = ""
    """Wait until the namespace's topics are others than these."""
    wait_ms: Wait = 0
    """How long the call may stay parked. Above 50000 counts as 50000."""


class ListTopicsReply(Reply, frozen=True):
    next_after: NextAfter = field(default=None, name="next_page_token")
    topics: tuple[ListedTopic, ...] = ()
    version: str = ""
    """Of all topics, other pages included: hand it to `topicsList` to wait for a change."""
