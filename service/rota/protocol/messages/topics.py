"""The registry of topics."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from rota.protocol.messages.base import Act, Audited, NamespaceRequest, Parkable, Reply, TopicRequest
from rota.protocol.values import INTERNAL, After, AtMost, Int64, PageSize, Pairs, PartitionCount, Wait, doc

_WAIT = doc("How long the call may stay parked. Above 50000 counts as 50000.")
Version = Annotated[str, AtMost(64)]


class PutTopic(TopicRequest, Audited, frozen=True):
    """Register a topic or let it grow; a count below today's is refused with `INVALID_PARTITIONS`."""

    partitions: Annotated[PartitionCount, doc("May only grow.")]
    attributes: Annotated[Pairs, doc("Anything worth knowing about the topic.")] = ()
    act: Annotated[Act | None, INTERNAL] = None
    topic_id: Annotated[Int64, INTERNAL] = 0
    """Set by the coordinator when every shard has forgotten the deleted topic of this name: see `ForgetTopic`."""


class GetTopic(TopicRequest, Parkable, frozen=True):
    """With `wait_ms`, parks while the topic is still the one that `version` says; none is a topic that is not there."""

    version: Annotated[Version, doc("Wait until the topic is another than this; without it, until there is one.")] = ""
    wait_ms: Annotated[Wait | None, _WAIT] = 0


class DeleteTopic(TopicRequest, Audited, frozen=True):
    """Delete a topic with the progress that groups have in it."""

    act: Annotated[Act | None, INTERNAL] = None


class ForgetTopic(TopicRequest, frozen=True):
    """Delete the progress of all earlier topics of this name (ADR 107). The coordinator asks every shard."""

    topic_id: Int64


class ListedTopic(Struct, frozen=True):
    """A topic in a list."""

    topic: str
    partitions: Int64
    attributes: Pairs = ()
    version: Annotated[str, doc("Another one for each other content: hand it to `topicsGet` to wait for a change.")] = (
        ""
    )


class TopicReply(Reply, frozen=True):
    topic: str = ""
    partitions: Int64 = 0
    attributes: Pairs = ()
    version: Annotated[str, doc("Another one for each other content: hand it to `topicsGet` to wait for a change.")] = (
        ""
    )
    groups: Annotated[Int64, doc("Of a deletion: the number of groups whose progress was deleted with the topic.")] = 0
    forget_id: Annotated[Int64, INTERNAL] = 0
    """The id of the `ForgetTopic` that all shards have to carry out before the call is answered; 0: none."""


class ListTopics(NamespaceRequest, Parkable, frozen=True):
    """With `wait_ms`, parks while the namespace's topics, those of other pages included, are as `version` says."""

    after: After = ""
    limit: PageSize = 1_000
    version: Annotated[Version, doc("Wait until the namespace's topics are others than these.")] = ""
    wait_ms: Annotated[Wait | None, _WAIT] = 0


class ListTopicsReply(Reply, frozen=True):
    topics: tuple[ListedTopic, ...] = ()
    more: Annotated[bool, INTERNAL] = False
    version: Annotated[
        str, doc("Of all topics, other pages included: hand it to `topicsList` to wait for a change.")
    ] = ""
