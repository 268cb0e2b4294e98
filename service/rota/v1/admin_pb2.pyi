from rota.v1 import coordinator_pb2 as _coordinator_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListGroupsRequest(_message.Message):
    __slots__ = ("namespace", "states", "group_types", "protocol_types", "page_token", "page_size", "topic")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    GROUP_TYPES_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPES_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    states: _containers.RepeatedScalarFieldContainer[str]
    group_types: _containers.RepeatedScalarFieldContainer[str]
    protocol_types: _containers.RepeatedScalarFieldContainer[str]
    page_token: str
    page_size: int
    topic: str
    def __init__(self, namespace: _Optional[str] = ..., states: _Optional[_Iterable[str]] = ..., group_types: _Optional[_Iterable[str]] = ..., protocol_types: _Optional[_Iterable[str]] = ..., page_token: _Optional[str] = ..., page_size: _Optional[int] = ..., topic: _Optional[str] = ...) -> None: ...

class Trouble(_message.Message):
    __slots__ = ("kind", "text", "next_step", "number")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    kind: str
    text: str
    next_step: str
    number: int
    def __init__(self, kind: _Optional[str] = ..., text: _Optional[str] = ..., next_step: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class ListedGroup(_message.Message):
    __slots__ = ("group_id", "state", "protocol_type", "generation_id", "members", "group_type", "takeovers", "troubles", "leader_id", "state_since_ms", "rebalance_reason")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    GROUP_TYPE_FIELD_NUMBER: _ClassVar[int]
    TAKEOVERS_FIELD_NUMBER: _ClassVar[int]
    TROUBLES_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_REASON_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    state: str
    protocol_type: str
    generation_id: int
    members: int
    group_type: str
    takeovers: int
    troubles: _containers.RepeatedCompositeFieldContainer[Trouble]
    leader_id: str
    state_since_ms: int
    rebalance_reason: str
    def __init__(self, group_id: _Optional[str] = ..., state: _Optional[str] = ..., protocol_type: _Optional[str] = ..., generation_id: _Optional[int] = ..., members: _Optional[int] = ..., group_type: _Optional[str] = ..., takeovers: _Optional[int] = ..., troubles: _Optional[_Iterable[_Union[Trouble, _Mapping]]] = ..., leader_id: _Optional[str] = ..., state_since_ms: _Optional[int] = ..., rebalance_reason: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups", "next_page_token", "revision", "epoch")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[ListedGroup]
    next_page_token: str
    revision: int
    epoch: int
    def __init__(self, groups: _Optional[_Iterable[_Union[ListedGroup, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("namespace", "group_id")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ...) -> None: ...

class DescribedMember(_message.Message):
    __slots__ = ("member_id", "group_instance_id", "client_id", "host", "metadata", "assignment", "session_timeout_ms", "rebalance_timeout_ms", "session_deadline_ms", "joined", "awaited", "metadata_decoded", "assignment_decoded", "fencing_token", "protocols")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    SESSION_DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    METADATA_DECODED_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_DECODED_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOLS_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    group_instance_id: str
    client_id: str
    host: str
    metadata: bytes
    assignment: bytes
    session_timeout_ms: int
    rebalance_timeout_ms: int
    session_deadline_ms: int
    joined: bool
    awaited: bool
    metadata_decoded: str
    assignment_decoded: str
    fencing_token: int
    protocols: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., client_id: _Optional[str] = ..., host: _Optional[str] = ..., metadata: _Optional[bytes] = ..., assignment: _Optional[bytes] = ..., session_timeout_ms: _Optional[int] = ..., rebalance_timeout_ms: _Optional[int] = ..., session_deadline_ms: _Optional[int] = ..., joined: _Optional[bool] = ..., awaited: _Optional[bool] = ..., metadata_decoded: _Optional[str] = ..., assignment_decoded: _Optional[str] = ..., fencing_token: _Optional[int] = ..., protocols: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("group_id", "state", "generation_id", "protocol_type", "protocol_name", "leader_id", "members", "pending_members", "rebalance_reason", "rebalance_by", "state_since_ms", "phase_deadline_ms", "rebalance_cause", "frozen_until_ms", "frozen_reason", "leaving", "quarantine_after", "quarantined", "preempt_at_ms", "generation_protocol_name", "troubles", "revision", "epoch")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_NAME_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PENDING_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_REASON_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_BY_FIELD_NUMBER: _ClassVar[int]
    STATE_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    PHASE_DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_CAUSE_FIELD_NUMBER: _ClassVar[int]
    FROZEN_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    FROZEN_REASON_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_AFTER_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    PREEMPT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_PROTOCOL_NAME_FIELD_NUMBER: _ClassVar[int]
    TROUBLES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    state: str
    generation_id: int
    protocol_type: str
    protocol_name: str
    leader_id: str
    members: _containers.RepeatedCompositeFieldContainer[DescribedMember]
    pending_members: int
    rebalance_reason: str
    rebalance_by: str
    state_since_ms: int
    phase_deadline_ms: int
    rebalance_cause: str
    frozen_until_ms: int
    frozen_reason: str
    leaving: _containers.RepeatedScalarFieldContainer[str]
    quarantine_after: int
    quarantined: _containers.RepeatedScalarFieldContainer[str]
    preempt_at_ms: int
    generation_protocol_name: str
    troubles: _containers.RepeatedCompositeFieldContainer[Trouble]
    revision: int
    epoch: int
    def __init__(self, group_id: _Optional[str] = ..., state: _Optional[str] = ..., generation_id: _Optional[int] = ..., protocol_type: _Optional[str] = ..., protocol_name: _Optional[str] = ..., leader_id: _Optional[str] = ..., members: _Optional[_Iterable[_Union[DescribedMember, _Mapping]]] = ..., pending_members: _Optional[int] = ..., rebalance_reason: _Optional[str] = ..., rebalance_by: _Optional[str] = ..., state_since_ms: _Optional[int] = ..., phase_deadline_ms: _Optional[int] = ..., rebalance_cause: _Optional[str] = ..., frozen_until_ms: _Optional[int] = ..., frozen_reason: _Optional[str] = ..., leaving: _Optional[_Iterable[str]] = ..., quarantine_after: _Optional[int] = ..., quarantined: _Optional[_Iterable[str]] = ..., preempt_at_ms: _Optional[int] = ..., generation_protocol_name: _Optional[str] = ..., troubles: _Optional[_Iterable[_Union[Trouble, _Mapping]]] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("namespace", "group_id", "reason")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    reason: str
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ("revision", "epoch")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    revision: int
    epoch: int
    def __init__(self, revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class RebalanceGroupRequest(_message.Message):
    __slots__ = ("namespace", "group_id", "reason", "step_down")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STEP_DOWN_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    reason: str
    step_down: bool
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., reason: _Optional[str] = ..., step_down: _Optional[bool] = ...) -> None: ...

class RebalanceGroupResponse(_message.Message):
    __slots__ = ("generation_id", "revision", "epoch")
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    generation_id: int
    revision: int
    epoch: int
    def __init__(self, generation_id: _Optional[int] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class FreezeGroupRequest(_message.Message):
    __slots__ = ("namespace", "group_id", "for_ms", "reason")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    FOR_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    for_ms: int
    reason: str
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., for_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class FreezeGroupResponse(_message.Message):
    __slots__ = ("frozen_until_ms", "revision", "epoch")
    FROZEN_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    frozen_until_ms: int
    revision: int
    epoch: int
    def __init__(self, frozen_until_ms: _Optional[int] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class QuarantineGroupRequest(_message.Message):
    __slots__ = ("namespace", "group_id", "after_falls", "max_units", "release_after_ms", "release", "reason")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FALLS_FIELD_NUMBER: _ClassVar[int]
    MAX_UNITS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    after_falls: int
    max_units: int
    release_after_ms: int
    release: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., after_falls: _Optional[int] = ..., max_units: _Optional[int] = ..., release_after_ms: _Optional[int] = ..., release: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ...) -> None: ...

class QuarantineGroupResponse(_message.Message):
    __slots__ = ("after_falls", "max_units", "release_after_ms", "quarantined", "revision", "epoch")
    AFTER_FALLS_FIELD_NUMBER: _ClassVar[int]
    MAX_UNITS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    after_falls: int
    max_units: int
    release_after_ms: int
    quarantined: _containers.RepeatedScalarFieldContainer[str]
    revision: int
    epoch: int
    def __init__(self, after_falls: _Optional[int] = ..., max_units: _Optional[int] = ..., release_after_ms: _Optional[int] = ..., quarantined: _Optional[_Iterable[str]] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class DrainMemberRequest(_message.Message):
    __slots__ = ("namespace", "group_id", "member_id", "group_instance_id", "max_leaving", "grant_ms", "reason")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_LEAVING_FIELD_NUMBER: _ClassVar[int]
    GRANT_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    member_id: str
    group_instance_id: str
    max_leaving: int
    grant_ms: int
    reason: str
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., max_leaving: _Optional[int] = ..., grant_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class DrainMemberResponse(_message.Message):
    __slots__ = ("granted", "until_ms", "leaving", "why_not", "revision", "epoch")
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    WHY_NOT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    granted: bool
    until_ms: int
    leaving: _containers.RepeatedScalarFieldContainer[str]
    why_not: str
    revision: int
    epoch: int
    def __init__(self, granted: _Optional[bool] = ..., until_ms: _Optional[int] = ..., leaving: _Optional[_Iterable[str]] = ..., why_not: _Optional[str] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class RemoveMembersRequest(_message.Message):
    __slots__ = ("namespace", "group_id", "members")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    members: _containers.RepeatedCompositeFieldContainer[_coordinator_pb2.LeavingMember]
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., members: _Optional[_Iterable[_Union[_coordinator_pb2.LeavingMember, _Mapping]]] = ...) -> None: ...

class RemoveMembersResponse(_message.Message):
    __slots__ = ("members", "revision", "epoch")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[_coordinator_pb2.LeftMember]
    revision: int
    epoch: int
    def __init__(self, members: _Optional[_Iterable[_Union[_coordinator_pb2.LeftMember, _Mapping]]] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class DeleteOffsetsRequest(_message.Message):
    __slots__ = ("namespace", "group_id", "topics")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    topics: _containers.RepeatedCompositeFieldContainer[_coordinator_pb2.TopicPartitions]
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[_coordinator_pb2.TopicPartitions, _Mapping]]] = ...) -> None: ...

class DeleteOffsetsResponse(_message.Message):
    __slots__ = ("partitions", "revision", "epoch")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[_coordinator_pb2.PartitionResult]
    revision: int
    epoch: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[_coordinator_pb2.PartitionResult, _Mapping]]] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class WatchGroupRequest(_message.Message):
    __slots__ = ("namespace", "group_id", "after_revision", "from_earliest")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_REVISION_FIELD_NUMBER: _ClassVar[int]
    FROM_EARLIEST_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group_id: str
    after_revision: int
    from_earliest: bool
    def __init__(self, namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., after_revision: _Optional[int] = ..., from_earliest: _Optional[bool] = ...) -> None: ...

class WatchGroupResponse(_message.Message):
    __slots__ = ("at_ms", "namespace", "group_id", "generation_id", "kind", "reason", "payload_json", "revision", "epoch")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    namespace: str
    group_id: str
    generation_id: int
    kind: str
    reason: str
    payload_json: str
    revision: int
    epoch: int
    def __init__(self, at_ms: _Optional[int] = ..., namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., generation_id: _Optional[int] = ..., kind: _Optional[str] = ..., reason: _Optional[str] = ..., payload_json: _Optional[str] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class PutTopicRequest(_message.Message):
    __slots__ = ("namespace", "topic", "partitions", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    topic: str
    partitions: int
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, namespace: _Optional[str] = ..., topic: _Optional[str] = ..., partitions: _Optional[int] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("topic", "partitions", "attributes", "version")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: int
    attributes: _containers.ScalarMap[str, str]
    version: str
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ..., attributes: _Optional[_Mapping[str, str]] = ..., version: _Optional[str] = ...) -> None: ...

class PutTopicResponse(_message.Message):
    __slots__ = ("topic", "partitions", "attributes", "version", "groups", "revision", "epoch")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: int
    attributes: _containers.ScalarMap[str, str]
    version: str
    groups: int
    revision: int
    epoch: int
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ..., attributes: _Optional[_Mapping[str, str]] = ..., version: _Optional[str] = ..., groups: _Optional[int] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class GetTopicRequest(_message.Message):
    __slots__ = ("namespace", "topic", "version", "wait_ms")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    topic: str
    version: str
    wait_ms: int
    def __init__(self, namespace: _Optional[str] = ..., topic: _Optional[str] = ..., version: _Optional[str] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class GetTopicResponse(_message.Message):
    __slots__ = ("topic", "partitions", "attributes", "version", "groups", "revision", "epoch")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: int
    attributes: _containers.ScalarMap[str, str]
    version: str
    groups: int
    revision: int
    epoch: int
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ..., attributes: _Optional[_Mapping[str, str]] = ..., version: _Optional[str] = ..., groups: _Optional[int] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("namespace", "topic")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    topic: str
    def __init__(self, namespace: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ("topic", "partitions", "attributes", "version", "groups", "revision", "epoch")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: int
    attributes: _containers.ScalarMap[str, str]
    version: str
    groups: int
    revision: int
    epoch: int
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ..., attributes: _Optional[_Mapping[str, str]] = ..., version: _Optional[str] = ..., groups: _Optional[int] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("namespace", "page_token", "page_size", "version", "wait_ms")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    page_token: str
    page_size: int
    version: str
    wait_ms: int
    def __init__(self, namespace: _Optional[str] = ..., page_token: _Optional[str] = ..., page_size: _Optional[int] = ..., version: _Optional[str] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics", "next_page_token", "version", "revision", "epoch")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    next_page_token: str
    version: str
    revision: int
    epoch: int
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., version: _Optional[str] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...
