"""Progress: committed offsets."""

from __future__ import annotations

from rota.protocol.errors import ErrorCode
from rota.protocol.frozen import frozen
from rota.protocol.messages.base import Act, Audited, GroupRequest, InMembersName


@frozen
class OffsetToCommit:
    """A partition's progress.

    `retention_time_ms` after the commit the offset may expire, as in Kafka's OffsetCommit up to version 4. Without it,
    the server's retention counts, from the moment when the group becomes Empty. `topic_id` is the one that came with
    the fetched progress: the commit is refused if the topic was deleted since. Without it, the commit counts for the
    topic that has the name now.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int | None = None
    metadata: str = ""
    retention_time_ms: int | None = None
    topic_id: int | None = None


@frozen
class CommitOffsets(GroupRequest, Audited, InMembersName):
    """Record progress, as a member of a generation or, with a negative generation, as an administrator."""

    generation_id: int
    offsets: tuple[OffsetToCommit, ...]
    member_id: str = ""
    group_instance_id: str | None = None
    act: Act | None = None
    subject: str = ""

    @property
    def is_standalone(self) -> bool:
        """Whether the commit claims no generation: only an Empty group accepts it, or an unknown one, which it makes.

        The names that it gives count for nothing: in an Empty group, no member exists that could be checked against
        them. So it takes an administrator. The core, the guard and the quotas all ask here.
        """
        return self.generation_id < 0


@frozen
class PartitionResult:
    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE


@frozen
class CommitReply:
    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    partitions: tuple[PartitionResult, ...] = ()


@frozen
class TopicPartitions:
    topic: str
    partitions: tuple[int, ...]


@frozen
class FetchOffsets(GroupRequest):
    """Read progress; `topics=None` reads all there is. Needs no membership."""

    topics: tuple[TopicPartitions, ...] | None = None


@frozen
class FetchedOffset:
    """A partition's progress; `offset` is -1 where nothing was committed.

    `expires_at_ms` is set where the commit named a retention: the offset does not expire earlier. `topic_id` changes
    when the topic is deleted or registered again; None comes from a server that does not say it.
    """

    topic: str
    partition: int
    offset: int = -1
    leader_epoch: int | None = None
    metadata: str = ""
    committed_at_ms: int = 0
    expires_at_ms: int | None = None
    topic_id: int | None = None


@frozen
class FetchReply:
    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    offsets: tuple[FetchedOffset, ...] = ()


@frozen
class DeleteOffsets(GroupRequest, Audited):
    topics: tuple[TopicPartitions, ...]
    act: Act | None = None


@frozen
class DeleteOffsetsReply:
    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    partitions: tuple[PartitionResult, ...] = ()
