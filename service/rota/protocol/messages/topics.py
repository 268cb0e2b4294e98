"""The registry of topics."""

from __future__ import annotations

from dataclasses import field

from rota.protocol.errors import ErrorCode
from rota.protocol.frozen import frozen
from rota.protocol.messages.base import Act, Audited, NamespaceRequest, Parkable, TopicRequest


@frozen
class PutTopic(TopicRequest, Audited):
    """Register a topic or let it grow; a count below today's is refused with `INVALID_PARTITIONS`."""

    partitions: int
    attributes: tuple[tuple[str, str], ...] = ()
    act: Act | None = None
    topic_id: int = 0
    """Set by the coordinator when every shard has forgotten the deleted topic of this name: see `ForgetTopic`."""


@frozen
class GetTopic(TopicRequest, Parkable):
    """With `wait_ms`, parks while the topic is still the one that `version` says; none is a topic that is not there."""

    version: str = ""
    wait_ms: int | None = 0


@frozen
class DeleteTopic(TopicRequest, Audited):
    """Delete a topic with the progress that groups have in it."""

    act: Act | None = None


@frozen
class ForgetTopic(TopicRequest):
    """Delete the progress of all earlier topics of this name (ADR 107). The coordinator asks every shard."""

    topic_id: int


@frozen
class TopicReply:
    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    topic: str = ""
    partitions: int = 0
    attributes: tuple[tuple[str, str], ...] = ()
    version: str = ""
    """Another one for each other content, for `GetTopic` to wait with."""
    groups: int = 0
    """The number of groups that had progress in the deleted topic."""
    forget_id: int = 0
    """The id of the `ForgetTopic` that all shards have to carry out before the call is answered; 0: none."""


@frozen
class ListTopics(NamespaceRequest, Parkable):
    """With `wait_ms`, parks while the namespace's topics, those of other pages included, are as `version` says."""

    after: str = ""
    limit: int = 1_000
    version: str = ""
    wait_ms: int | None = 0


@frozen
class ListTopicsReply:
    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    topics: tuple[TopicReply, ...] = field(default=())
    more: bool = False
    version: str = ""
    """Another one for each other content of the namespace, of which this may be a page."""
