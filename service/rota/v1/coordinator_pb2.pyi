from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Protocol(_message.Message):
    __slots__ = ("name", "metadata")
    NAME_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    metadata: bytes
    def __init__(self, name: _Optional[str] = ..., metadata: _Optional[bytes] = ...) -> None: ...

class JoinGroupRequest(_message.Message):
    __slots__ = ("namespace", "group_id", "member_id", "group_instance_id", "client_id", "protocol_type", "protocols", "session_timeout_ms", "rebalance_timeout_ms", "reason", "wait_ms", "last_generation_id")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOLS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    member_id: str
    group_instance_id: str
    client_id: str
    protocol_type: str
    protocols: _containers.RepeatedCompositeFieldContainer[Protocol]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    reason: str
    wait_ms: int
    last_generation_id: int
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., client_id: _Optional[str] = ..., protocol_type: _Optional[str] = ..., protocols: _Optional[_Iterable[_Union[Protocol, _Mapping]]] = ..., session_timeout_ms: _Optional[int] = ..., rebalance_timeout_ms: _Optional[int] = ..., reason: _Optional[str] = ..., wait_ms: _Optional[int] = ..., last_generation_id: _Optional[int] = ...) -> None: ...

class JoinedMember(_message.Message):
    __slots__ = ("member_id", "group_instance_id", "metadata")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    group_instance_id: str
    metadata: bytes
    def __init__(self, member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., metadata: _Optional[bytes] = ...) -> None: ...

class JoinGroupResponse(_message.Message):
    __slots__ = ("pending", "member_id", "generation_id", "protocol_type", "protocol_name", "leader_id", "members", "skip_assignment", "fencing_token", "assignment", "revision", "epoch")
    PENDING_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_NAME_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SKIP_ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    pending: bool
    member_id: str
    generation_id: int
    protocol_type: str
    protocol_name: str
    leader_id: str
    members: _containers.RepeatedCompositeFieldContainer[JoinedMember]
    skip_assignment: bool
    fencing_token: int
    assignment: bytes
    revision: int
    epoch: int
    def __init__(self, pending: _Optional[bool] = ..., member_id: _Optional[str] = ..., generation_id: _Optional[int] = ..., protocol_type: _Optional[str] = ..., protocol_name: _Optional[str] = ..., leader_id: _Optional[str] = ..., members: _Optional[_Iterable[_Union[JoinedMember, _Mapping]]] = ..., skip_assignment: _Optional[bool] = ..., fencing_token: _Optional[int] = ..., assignment: _Optional[bytes] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class MemberAssignment(_message.Message):
    __slots__ = ("member_id", "assignment")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    assignment: bytes
    def __init__(self, member_id: _Optional[str] = ..., assignment: _Optional[bytes] = ...) -> None: ...

class SyncGroupRequest(_message.Message):
    __slots__ = ("namespace", "group_id", "member_id", "group_instance_id", "generation_id", "protocol_type", "protocol_name", "assignments", "error", "wait_ms")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_NAME_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    member_id: str
    group_instance_id: str
    generation_id: int
    protocol_type: str
    protocol_name: str
    assignments: _containers.RepeatedCompositeFieldContainer[MemberAssignment]
    error: str
    wait_ms: int
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., generation_id: _Optional[int] = ..., protocol_type: _Optional[str] = ..., protocol_name: _Optional[str] = ..., assignments: _Optional[_Iterable[_Union[MemberAssignment, _Mapping]]] = ..., error: _Optional[str] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class SyncGroupResponse(_message.Message):
    __slots__ = ("pending", "generation_id", "protocol_type", "protocol_name", "assignment", "fencing_token", "revision", "epoch")
    PENDING_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_NAME_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    pending: bool
    generation_id: int
    protocol_type: str
    protocol_name: str
    assignment: bytes
    fencing_token: int
    revision: int
    epoch: int
    def __init__(self, pending: _Optional[bool] = ..., generation_id: _Optional[int] = ..., protocol_type: _Optional[str] = ..., protocol_name: _Optional[str] = ..., assignment: _Optional[bytes] = ..., fencing_token: _Optional[int] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("namespace", "group_id", "member_id", "group_instance_id", "generation_id", "wait_ms")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    member_id: str
    group_instance_id: str
    generation_id: int
    wait_ms: int
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., generation_id: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("generation_id", "state", "waited_ms", "revision", "epoch")
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    generation_id: int
    state: str
    waited_ms: int
    revision: int
    epoch: int
    def __init__(self, generation_id: _Optional[int] = ..., state: _Optional[str] = ..., waited_ms: _Optional[int] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class MemberHeartbeat(_message.Message):
    __slots__ = ("member_id", "group_instance_id", "generation_id")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    group_instance_id: str
    generation_id: int
    def __init__(self, member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., generation_id: _Optional[int] = ...) -> None: ...

class GroupHeartbeat(_message.Message):
    __slots__ = ("namespace", "group_id", "members")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    members: _containers.RepeatedCompositeFieldContainer[MemberHeartbeat]
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., members: _Optional[_Iterable[_Union[MemberHeartbeat, _Mapping]]] = ...) -> None: ...

class HeartbeatManyRequest(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupHeartbeat]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupHeartbeat, _Mapping]]] = ...) -> None: ...

class MemberHeartbeatError(_message.Message):
    __slots__ = ("member_id", "error", "detail")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    error: str
    detail: str
    def __init__(self, member_id: _Optional[str] = ..., error: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class GroupHeartbeatResult(_message.Message):
    __slots__ = ("error", "detail", "generation_id", "state", "errors", "revision", "epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: str
    detail: str
    generation_id: int
    state: str
    errors: _containers.RepeatedCompositeFieldContainer[MemberHeartbeatError]
    revision: int
    epoch: int
    def __init__(self, error: _Optional[str] = ..., detail: _Optional[str] = ..., generation_id: _Optional[int] = ..., state: _Optional[str] = ..., errors: _Optional[_Iterable[_Union[MemberHeartbeatError, _Mapping]]] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class HeartbeatManyResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupHeartbeatResult]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupHeartbeatResult, _Mapping]]] = ...) -> None: ...

class LeavingMember(_message.Message):
    __slots__ = ("member_id", "group_instance_id", "reason", "failed_unit")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FAILED_UNIT_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    group_instance_id: str
    reason: str
    failed_unit: str
    def __init__(self, member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., reason: _Optional[str] = ..., failed_unit: _Optional[str] = ...) -> None: ...

class LeaveGroupRequest(_message.Message):
    __slots__ = ("namespace", "group_id", "members")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    members: _containers.RepeatedCompositeFieldContainer[LeavingMember]
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., members: _Optional[_Iterable[_Union[LeavingMember, _Mapping]]] = ...) -> None: ...

class LeftMember(_message.Message):
    __slots__ = ("member_id", "group_instance_id", "error")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    group_instance_id: str
    error: str
    def __init__(self, member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class LeaveGroupResponse(_message.Message):
    __slots__ = ("members", "revision", "epoch")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[LeftMember]
    revision: int
    epoch: int
    def __init__(self, members: _Optional[_Iterable[_Union[LeftMember, _Mapping]]] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class OffsetToCommit(_message.Message):
    __slots__ = ("topic", "partition", "offset", "leader_epoch", "metadata", "retention_time_ms", "topic_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    RETENTION_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    retention_time_ms: int
    topic_id: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., metadata: _Optional[str] = ..., retention_time_ms: _Optional[int] = ..., topic_id: _Optional[int] = ...) -> None: ...

class CommitOffsetsRequest(_message.Message):
    __slots__ = ("namespace", "group_id", "generation_id", "member_id", "group_instance_id", "offsets")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str
    offsets: _containers.RepeatedCompositeFieldContainer[OffsetToCommit]
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., generation_id: _Optional[int] = ..., member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[OffsetToCommit, _Mapping]]] = ...) -> None: ...

class PartitionResult(_message.Message):
    __slots__ = ("topic", "partition", "error")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class CommitOffsetsResponse(_message.Message):
    __slots__ = ("partitions", "revision", "epoch")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionResult]
    revision: int
    epoch: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionResult, _Mapping]]] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class TopicPartitions(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class FetchOffsetsRequest(_message.Message):
    __slots__ = ("namespace", "group_id", "topics")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    topics: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ...) -> None: ...

class FetchedOffset(_message.Message):
    __slots__ = ("topic", "partition", "offset", "leader_epoch", "metadata", "committed_at_ms", "expires_at_ms", "topic_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expires_at_ms: int
    topic_id: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., metadata: _Optional[str] = ..., committed_at_ms: _Optional[int] = ..., expires_at_ms: _Optional[int] = ..., topic_id: _Optional[int] = ...) -> None: ...

class FetchOffsetsResponse(_message.Message):
    __slots__ = ("offsets", "revision", "epoch")
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[FetchedOffset]
    revision: int
    epoch: int
    def __init__(self, offsets: _Optional[_Iterable[_Union[FetchedOffset, _Mapping]]] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class VerifyFenceRequest(_message.Message):
    __slots__ = ("namespace", "group_id", "generation_id", "member_id", "sign", "fencing_token")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    SIGN_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    generation_id: int
    member_id: str
    sign: bool
    fencing_token: int
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., generation_id: _Optional[int] = ..., member_id: _Optional[str] = ..., sign: _Optional[bool] = ..., fencing_token: _Optional[int] = ...) -> None: ...

class VerifyFenceResponse(_message.Message):
    __slots__ = ("generation_id", "is_leader", "is_member", "token", "fencing_token", "revision", "epoch")
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    IS_LEADER_FIELD_NUMBER: _ClassVar[int]
    IS_MEMBER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    generation_id: int
    is_leader: bool
    is_member: bool
    token: str
    fencing_token: int
    revision: int
    epoch: int
    def __init__(self, generation_id: _Optional[int] = ..., is_leader: _Optional[bool] = ..., is_member: _Optional[bool] = ..., token: _Optional[str] = ..., fencing_token: _Optional[int] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class GetLeaderRequest(_message.Message):
    __slots__ = ("namespace", "group_id", "after_generation", "wait_ms")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_GENERATION_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    after_generation: int
    wait_ms: int
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., after_generation: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class GetLeaderResponse(_message.Message):
    __slots__ = ("generation_id", "leader_id", "group_instance_id", "client_id", "state", "fencing_token", "revision", "epoch")
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    generation_id: int
    leader_id: str
    group_instance_id: str
    client_id: str
    state: str
    fencing_token: int
    revision: int
    epoch: int
    def __init__(self, generation_id: _Optional[int] = ..., leader_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., client_id: _Optional[str] = ..., state: _Optional[str] = ..., fencing_token: _Optional[int] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class FindCoordinatorRequest(_message.Message):
    __slots__ = ("namespace", "group_id")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ...) -> None: ...

class FindCoordinatorResponse(_message.Message):
    __slots__ = ("shard_id", "replica_id", "address", "lease_left_ms", "reported_by", "grpc_address", "worker_http_port", "worker_grpc_port", "revision", "epoch")
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    REPORTED_BY_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WORKER_HTTP_PORT_FIELD_NUMBER: _ClassVar[int]
    WORKER_GRPC_PORT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    shard_id: int
    replica_id: str
    address: str
    lease_left_ms: int
    reported_by: str
    grpc_address: str
    worker_http_port: int
    worker_grpc_port: int
    revision: int
    epoch: int
    def __init__(self, shard_id: _Optional[int] = ..., replica_id: _Optional[str] = ..., address: _Optional[str] = ..., lease_left_ms: _Optional[int] = ..., reported_by: _Optional[str] = ..., grpc_address: _Optional[str] = ..., worker_http_port: _Optional[int] = ..., worker_grpc_port: _Optional[int] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("call", "options", "join", "sync", "heartbeat", "leave", "commit", "cancel", "batch")
    CALL_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    call: int
    options: SessionOptions
    join: JoinGroupRequest
    sync: SyncGroupRequest
    heartbeat: HeartbeatManyRequest
    leave: LeaveGroupRequest
    commit: CommitOffsetsRequest
    cancel: int
    batch: _containers.RepeatedCompositeFieldContainer[SessionRequest]
    def __init__(self, call: _Optional[int] = ..., options: _Optional[_Union[SessionOptions, _Mapping]] = ..., join: _Optional[_Union[JoinGroupRequest, _Mapping]] = ..., sync: _Optional[_Union[SyncGroupRequest, _Mapping]] = ..., heartbeat: _Optional[_Union[HeartbeatManyRequest, _Mapping]] = ..., leave: _Optional[_Union[LeaveGroupRequest, _Mapping]] = ..., commit: _Optional[_Union[CommitOffsetsRequest, _Mapping]] = ..., cancel: _Optional[int] = ..., batch: _Optional[_Iterable[_Union[SessionRequest, _Mapping]]] = ...) -> None: ...

class SessionOptions(_message.Message):
    __slots__ = ("leave_after_ms",)
    LEAVE_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    leave_after_ms: int
    def __init__(self, leave_after_ms: _Optional[int] = ...) -> None: ...

class SessionError(_message.Message):
    __slots__ = ("code", "detail", "member_id", "retry_after_ms", "owner", "revision", "epoch")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    code: str
    detail: str
    member_id: str
    retry_after_ms: int
    owner: str
    revision: int
    epoch: int
    def __init__(self, code: _Optional[str] = ..., detail: _Optional[str] = ..., member_id: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., owner: _Optional[str] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class SessionEvent(_message.Message):
    __slots__ = ("call", "error", "joined", "synced", "heartbeat", "left", "committed", "options", "rebalance", "generation", "fenced", "drain", "election", "batch")
    CALL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    SYNCED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    ELECTION_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    call: int
    error: SessionError
    joined: JoinGroupResponse
    synced: SyncGroupResponse
    heartbeat: HeartbeatManyResponse
    left: LeaveGroupResponse
    committed: CommitOffsetsResponse
    options: SessionOptions
    rebalance: Rebalance
    generation: Generation
    fenced: Fenced
    drain: Drain
    election: Election
    batch: _containers.RepeatedCompositeFieldContainer[SessionEvent]
    def __init__(self, call: _Optional[int] = ..., error: _Optional[_Union[SessionError, _Mapping]] = ..., joined: _Optional[_Union[JoinGroupResponse, _Mapping]] = ..., synced: _Optional[_Union[SyncGroupResponse, _Mapping]] = ..., heartbeat: _Optional[_Union[HeartbeatManyResponse, _Mapping]] = ..., left: _Optional[_Union[LeaveGroupResponse, _Mapping]] = ..., committed: _Optional[_Union[CommitOffsetsResponse, _Mapping]] = ..., options: _Optional[_Union[SessionOptions, _Mapping]] = ..., rebalance: _Optional[_Union[Rebalance, _Mapping]] = ..., generation: _Optional[_Union[Generation, _Mapping]] = ..., fenced: _Optional[_Union[Fenced, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., election: _Optional[_Union[Election, _Mapping]] = ..., batch: _Optional[_Iterable[_Union[SessionEvent, _Mapping]]] = ...) -> None: ...

class Rebalance(_message.Message):
    __slots__ = ("namespace", "group_id", "member_ids", "generation_id", "reason", "by", "revision", "epoch")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_IDS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    member_ids: _containers.RepeatedScalarFieldContainer[str]
    generation_id: int
    reason: str
    by: str
    revision: int
    epoch: int
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., member_ids: _Optional[_Iterable[str]] = ..., generation_id: _Optional[int] = ..., reason: _Optional[str] = ..., by: _Optional[str] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Election(_message.Message):
    __slots__ = ("namespace", "group_id", "generation_id", "members", "leader_id", "protocol_type", "protocol_name", "fencing_token", "reason", "by", "revision", "epoch")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_NAME_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    generation_id: int
    members: _containers.RepeatedCompositeFieldContainer[MemberAssignment]
    leader_id: str
    protocol_type: str
    protocol_name: str
    fencing_token: int
    reason: str
    by: str
    revision: int
    epoch: int
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., generation_id: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberAssignment, _Mapping]]] = ..., leader_id: _Optional[str] = ..., protocol_type: _Optional[str] = ..., protocol_name: _Optional[str] = ..., fencing_token: _Optional[int] = ..., reason: _Optional[str] = ..., by: _Optional[str] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Generation(_message.Message):
    __slots__ = ("namespace", "group_id", "generation_id", "members", "revision", "epoch")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    generation_id: int
    members: _containers.RepeatedCompositeFieldContainer[MemberAssignment]
    revision: int
    epoch: int
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., generation_id: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberAssignment, _Mapping]]] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Fenced(_message.Message):
    __slots__ = ("namespace", "group_id", "member_ids", "code", "reason", "revision", "epoch")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_IDS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    member_ids: _containers.RepeatedScalarFieldContainer[str]
    code: str
    reason: str
    revision: int
    epoch: int
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., member_ids: _Optional[_Iterable[str]] = ..., code: _Optional[str] = ..., reason: _Optional[str] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
