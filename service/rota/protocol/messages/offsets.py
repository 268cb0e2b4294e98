"""Progress: committed offsets."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from rota.protocol.errors import ErrorCode
from rota.protocol.limits import MAX_RETENTION_TIME_MS
from rota.protocol.messages.base import NO_GENERATION, Act, Audited, GroupRequest, InMembersName, Reply
from rota.protocol.values import (
    INT32_MAX,
    INTERNAL,
    AtMost,
    GenerationId,
    InstanceId,
    Int64,
    KnownProgress,
    MemberId,
    Number,
    OnWire,
    Partition,
    Progress,
    Topic,
    doc,
    within,
)

_SELECTOR = "`topic/0,1,2`, repeated for each topic."
_INSTANCE = doc("Makes the member static: it survives its restarts.")


class OffsetToCommit(Struct, frozen=True):
    """A partition's progress.

    `retention_time_ms` after the commit the offset may expire, as in Kafka's OffsetCommit up to version 4. Without it,
    the server's retention counts, from the moment when the group becomes Empty. `topic_id` is the one that came with
    the fetched progress: the commit is refused if the topic was deleted since. Without it, the commit counts for the
    topic that has the name now.
    """

    topic: Topic
    partition: Partition
    offset: Annotated[Progress, doc("Where to go on: the next one to process. Above 2^53 - 1 a string.")]
    leader_epoch: Annotated[int, within(0, INT32_MAX)] | None = None
    metadata: Annotated[
        str, AtMost("request_max_bytes"), doc("A note of the committer; its own limit is per partition.")
    ] = ""
    retention_time_ms: Annotated[
        Annotated[int, within(1, MAX_RETENTION_TIME_MS)] | None,
        doc("After this long the offset may expire. Absent: the server's retention counts."),
    ] = None
    topic_id: Annotated[
        Number | None,
        doc("That of the fetched progress: the commit is refused if the topic was deleted since. Absent: not checked."),
    ] = None


class CommitOffsets(GroupRequest, Audited, InMembersName, frozen=True):
    """Record progress, as a member of a generation or, with a negative generation, as an administrator."""

    generation_id: Annotated[GenerationId, OnWire(default=NO_GENERATION), doc("Negative: an administrator's commit.")]
    offsets: Annotated[tuple[OffsetToCommit, ...], doc("One entry per partition.")]
    member_id: MemberId = ""
    group_instance_id: Annotated[InstanceId | None, _INSTANCE] = None
    act: Annotated[Act | None, INTERNAL] = None
    subject: Annotated[str, INTERNAL] = ""

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
    partitions: tuple[Partition, ...]


class FetchOffsets(GroupRequest, frozen=True):
    """Read progress; `topics=None` reads all there is. Needs no membership."""

    topics: Annotated[tuple[TopicPartitions, ...] | None, OnWire("topic"), doc(f"{_SELECTOR} Without it: all.")] = None


class FetchedOffset(Struct, frozen=True):
    """A partition's progress; `offset` is -1 where nothing was committed.

    `expires_at_ms` is set where the commit named a retention: the offset does not expire earlier. `topic_id` changes
    when the topic is deleted or registered again; None comes from a server that does not say it.
    """

    topic: str
    partition: Int64
    offset: Annotated[KnownProgress, doc("-1 where nothing was committed. Above 2^53 - 1 a string.")] = -1
    leader_epoch: Int64 | None = None
    metadata: str = ""
    committed_at_ms: Int64 = 0
    expires_at_ms: Annotated[Int64 | None, doc("Set where the commit named a retention.")] = None
    topic_id: Annotated[Int64 | None, doc("Another one after the topic was deleted: commits may repeat it.")] = None


class FetchReply(Reply, frozen=True):
    offsets: tuple[FetchedOffset, ...] = ()


class DeleteOffsets(GroupRequest, Audited, frozen=True):
    topics: Annotated[tuple[TopicPartitions, ...], OnWire("topic"), doc(_SELECTOR)]
    act: Annotated[Act | None, INTERNAL] = None


class DeleteOffsetsReply(Reply, frozen=True):
    partitions: tuple[PartitionResult, ...] = ()
