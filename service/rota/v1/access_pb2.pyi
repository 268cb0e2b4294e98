from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WhoAmIRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class KnownRule(_message.Message):
    __slots__ = ("name", "effect", "actions", "namespaces", "groups", "topics")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    name: str
    effect: str
    actions: _containers.RepeatedScalarFieldContainer[str]
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    groups: _containers.RepeatedScalarFieldContainer[str]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., effect: _Optional[str] = ..., actions: _Optional[_Iterable[str]] = ..., namespaces: _Optional[_Iterable[str]] = ..., groups: _Optional[_Iterable[str]] = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...

class WhoAmIResponse(_message.Message):
    __slots__ = ("subject", "method", "groups", "expires_at_ms", "guarded", "rules")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    GUARDED_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    subject: str
    method: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    expires_at_ms: int
    guarded: bool
    rules: _containers.RepeatedCompositeFieldContainer[KnownRule]
    def __init__(self, subject: _Optional[str] = ..., method: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., expires_at_ms: _Optional[int] = ..., guarded: _Optional[bool] = ..., rules: _Optional[_Iterable[_Union[KnownRule, _Mapping]]] = ...) -> None: ...

class CanIRequest(_message.Message):
    __slots__ = ("action", "namespace", "group_id", "topic")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    action: str
    namespace: str
    group_id: str
    topic: str
    def __init__(self, action: _Optional[str] = ..., namespace: _Optional[str] = ..., group_id: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class CanIResponse(_message.Message):
    __slots__ = ("allowed", "rule", "detail")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    rule: str
    detail: str
    def __init__(self, allowed: _Optional[bool] = ..., rule: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...
