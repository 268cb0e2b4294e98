"""Which request goes where over HTTP: the server serves this table, the SDK calls it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from rota.protocol import messages as m
from rota.protocol.ids import check_group_id, check_member_id, check_namespace, check_topic
from rota.protocol.limits import Limits
from rota.protocol.messages import Reply, Request
from rota.wire import requests as shapes
from rota.wire.records import ObjectShape

PREFIX = "/v1/namespaces/{namespace}"
_GROUP = PREFIX + "/groups/{group_id}"
_TOPIC = PREFIX + "/topics/{topic}"
MEMBER_PATH = _GROUP + "/members/{member_id}"
_PARAMETER = re.compile(r"\{(\w+)\}")

PATH_CHECKS = MappingProxyType(
    {
        "namespace": check_namespace,
        "group_id": check_group_id,
        "topic": check_topic,
        "member_id": check_member_id,
    }
)


class Carrier(Enum):
    """Where a request's fields travel."""

    BODY = "body"
    QUERY = "query"


@dataclass(frozen=True, slots=True)
class Route:
    """One call: its method and path, how its request and reply look, and how long it parks by itself."""

    request: type[Request]
    reply: type[Reply]
    method: str
    path: str
    carrier: Carrier
    shape: ObjectShape

    @property
    def path_parameters(self) -> list[str]:
        return _PARAMETER.findall(self.path)


@dataclass(frozen=True, slots=True)
class Target:
    """A request, ready to be sent: `body` is None for calls that have none."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    body: dict[str, Any] | None


def _body(request: type[Request], reply: type[Reply], method: str, path: str, shape: ObjectShape) -> Route:
    return Route(request, reply, method, path, Carrier.BODY, shape)


def _query(request: type[Request], reply: type[Reply], method: str, path: str, shape: ObjectShape) -> Route:
    return Route(request, reply, method, path, Carrier.QUERY, shape)


_ALL = (
    _body(m.JoinGroup, m.JoinReply, "POST", _GROUP + "/join", shapes.JOIN_GROUP),
    _body(m.SyncGroup, m.SyncReply, "POST", _GROUP + "/sync", shapes.SYNC_GROUP),
    _body(m.Heartbeat, m.HeartbeatReply, "POST", _GROUP + "/heartbeat", shapes.HEARTBEAT),
    _body(m.LeaveGroup, m.LeaveReply, "POST", _GROUP + "/leave", shapes.LEAVE_GROUP),
    _body(m.CommitOffsets, m.CommitReply, "POST", _GROUP + "/offsets", shapes.COMMIT_OFFSETS),
    _query(m.FetchOffsets, m.FetchReply, "GET", _GROUP + "/offsets", shapes.FETCH_OFFSETS),
    _query(m.DeleteOffsets, m.DeleteOffsetsReply, "DELETE", _GROUP + "/offsets", shapes.DELETE_OFFSETS),
    _body(m.VerifyFence, m.FenceReply, "POST", _GROUP + "/fence", shapes.VERIFY_FENCE),
    _query(m.GetLeader, m.LeaderReply, "GET", _GROUP + "/leader", shapes.GET_LEADER),
    _query(m.DescribeGroup, m.DescribeReply, "GET", _GROUP, shapes.DESCRIBE_GROUP),
    _query(m.DeleteGroup, m.DeleteGroupReply, "DELETE", _GROUP, shapes.DELETE_GROUP),
    _body(m.RebalanceGroup, m.RebalanceReply, "POST", _GROUP + "/rebalance", shapes.REBALANCE_GROUP),
    _body(m.FreezeGroup, m.FreezeReply, "POST", _GROUP + "/freeze", shapes.FREEZE_GROUP),
    _body(m.QuarantineGroup, m.QuarantineReply, "POST", _GROUP + "/quarantine", shapes.QUARANTINE_GROUP),
    _body(m.DrainMember, m.DrainReply, "POST", _GROUP + "/drain", shapes.DRAIN_MEMBER),
    _body(m.PlanGroup, m.PlanReply, "POST", _GROUP + "/plan", shapes.PLAN_GROUP),
    _query(m.ListGroups, m.ListReply, "GET", PREFIX + "/groups", shapes.LIST_GROUPS),
    _body(m.PutTopic, m.TopicReply, "PUT", _TOPIC, shapes.PUT_TOPIC),
    _query(m.GetTopic, m.TopicReply, "GET", _TOPIC, shapes.GET_TOPIC),
    _query(m.DeleteTopic, m.TopicReply, "DELETE", _TOPIC, shapes.DELETE_TOPIC),
    _query(m.ListTopics, m.ListTopicsReply, "GET", PREFIX + "/topics", shapes.LIST_TOPICS),
)
ROUTES: Mapping[type[Request], Route] = MappingProxyType({route.request: route for route in _ALL})


def decode_path(parameters: Mapping[str, str]) -> dict[str, str]:
    """Check what the path names; `RejectedRequest` for the first name that is none."""
    for name, value in parameters.items():
        PATH_CHECKS[name](value)
    return dict(parameters)


def decode_request(
    route: Route, path: Mapping[str, str], document: dict[str, Any], limits: Limits, **given: Any
) -> Any:
    """Build the route's request of its path, its document (the body's, or the query's) and what neither says."""
    return route.shape.decode(document, limits, **decode_path(path), **given)


def encode_request(request: Request) -> Target:
    """Where to send a request, and what with."""
    if isinstance(request, m.LeaveGroup) and request.by_admin:
        return _removal(request)
    route = ROUTES[type(request)]
    path = route.path.format(**{name: quote(getattr(request, name), safe="") for name in route.path_parameters})
    if route.carrier is Carrier.QUERY:
        return Target(route.method, path, tuple(route.shape.to_query(request)), None)
    return Target(route.method, path, (), route.shape.encode(request))


def _removal(request: m.LeaveGroup) -> Target:
    """What an administrator does has a path of its own, so that it can be allowed or not by its path."""
    if len(request.members) != 1 or not request.members[0].member_id:
        raise ValueError("over HTTP an administrator removes one member at a time, by its member_id")
    (member,) = request.members
    names = {"namespace": request.namespace, "group_id": request.group_id, "member_id": member.member_id}
    path = MEMBER_PATH.format(**{name: quote(value, safe="") for name, value in names.items()})
    return Target("DELETE", path, (("reason", member.reason),) if member.reason else (), None)
