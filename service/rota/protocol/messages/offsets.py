"""Progress: committed offsets."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import MAX_RETENTION_TIME_MS, MAX_SAFE_INTEGER
from rota.protocol.messages.base import (
    NO_GENERATION,
    Audited,
    Author,
    GroupRequest,
    InMembersName,
    Part,
    Reply,
    Subject,
)
from rota.protocol.values import (
    INT32_MAX,
    INT64_MAX,
    MANY,
    REQUIRED_ON_WIRE,
    GenerationId,
    InstanceId,
    Int64,
    KnownProgress,
    MemberId,
    NoNul,
    Number,
    OrNull,
    Partition,
    Progress,
    Topic,
    via,
    within,
)

_SELECTOR = "`topic/0,1,2`, repeated for each topic."


class OffsetToCommit(Part, frozen=True):
    """A partition's progress.

    `retention_time_ms` after the commit the offset may expire, as in Kafka's OffsetCommit up to version 4. Without it,
    the server's retention counts, from the moment when the group becomes Empty. `topic_id` is the one that came with
    the fetched progress: the commit is refused if the topic was deleted since. Without it, the commit counts for the
    topic that has the name now.
    """

    topic: Topic
    partition: Partition
    offset: Progress
    """Where to go on: the next one to process. Above 2^53 - 1 a string."""
    leader_epoch: Annotated[int, within(0, INT32_MAX)] | None = None
    metadata: OrNull[NoNul] = ""
    """A note of the committer; its own limit is per partition."""
    retention_time_ms: Annotated[int, within(1, MAX_RETENTION_TIME_MS)] | None = None
    """After this long the offset may expire. Absent: the server's retention counts."""
    topic_id: Number | None = None
    """That of the fetched progress: the commit is refused if the topic was deleted since. Absent: not checked."""


def _exact(offsets: Any) -> Meta:
    """JSON has no exact numbers above 2^53 - 1."""
    return via(
        offsets,
        lambda items: tuple([_as_number(number, item) for number, item in enumerate(items)]),
        lambda items: tuple([i if i.offset <= MAX_SAFE_INTEGER else replace(i, offset=str(i.offset)) for i in items]),
    )


def _as_number(number: int, item: Any) -> Any:
    """An entry of a list, with its offset as a number."""
    if isinstance(item.offset, int):
        if item.offset <= MAX_SAFE_INTEGER:
            return item
        raise RejectedRequest(
            ErrorCode.INVALID_REQUEST, f"[{number}].offset must be a string of digits above {MAX_SAFE_INTEGER}"
        )
    if int(item.offset) > INT64_MAX:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, f"[{number}].offset must be at most {INT64_MAX}")
    return replace(item, offset=int(item.offset))


class CommitOffsets(GroupRequest, Audited, InMembersName, frozen=True):
    """Record progress, as a member of a generation or, with a negative generation, as an administrator."""

    generation_id: GenerationId = NO_GENERATION
    """Negative: an administrator's commit."""
    offsets: Annotated[
        tuple[OffsetToCommit, ...], _exact(Annotated[tuple[OffsetToCommit, ...], MANY]), REQUIRED_ON_WIRE
    ] = ()
    """One entry per partition."""
    member_id: MemberId = ""
    group_instance_id: InstanceId | None = None
    """Makes the member static: it survives its restarts."""
    act: Author = None
    subject: Subject = ""

    @property
    def is_standalone(self) -> bool:
        """Whether the commit claims no generation: only an Empty group accepts it, or an unknown one, which it makes.

        The names that it gives count for nothing: in an Empty group, no member exists that could be checked against
        them. So it takes an administrator. The core, the guard and the quotas all ask here.
        """
        return self.generation_id < 0


class PartitionResult(Struct, frozen=True):
    topic: str
    partition: Int64
    error: ErrorCode = ErrorCode.NONE


class CommitReply(Reply, frozen=True):
    partitions: tuple[PartitionResult, ...] = ()


class TopicPartitions(Struct, frozen=True):
    """Partitions of one topic."""

    topic: Topic
    partitions: Annotated[tuple[Partition, ...], Meta(min_length=1), MANY]


class FetchOffsets(GroupRequest, frozen=True):
    """Read progress; `topics=None` reads all there is. Needs no membership."""

    topics: Annotated[tuple[TopicPartitions, ...] | None, MANY] = field(default=None, name="topic")
    """`topic/0,1,2`, repeated for each topic. Without it: all."""


class FetchedOffset(Struct, frozen=True):
    """A partition's progress; `offset` is -1 where nothing was committed.

    `expires_at_ms` is set where the commit named a retention: the offset does not expire earlier. `topic_id` changes
    when the topic is deleted or registered again; None comes from a server that does not say it.
    """

    topic: str
    partition: Int64
    offset: KnownProgress = -1
    """-1 where nothing was committed. Above 2^53 - 1 a string."""
    leader_epoch: Int64 | None = None
    metadata: str = ""
    committed_at_ms: Int64 = 0
    expires_at_ms: Int64 | None = None
    """Set where the commit named a retention."""
    topic_id: Int64 | None = None
    """Another one after the topic was deleted: commits may repeat it."""


class FetchReply(Reply, frozen=True):
    offsets: Annotated[tuple[FetchedOffset, ...], _exact(tuple[FetchedOffset, ...])] = ()


class DeleteOffsets(GroupRequest, Audited, frozen=True):
    topics: Annotated[tuple[TopicPartitions, ...], MANY] = field(name="topic")
    """`topic/0,1,2`, repeated for each topic."""
    act: Author = None


class DeleteOffsetsReply(Reply, frozen=True):
    partitions: tuple[PartitionResult, ...] = ()
