"""Which request goes where over HTTP: the server serves this table, the SDK calls it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from rota.protocol import messages as m
from rota.protocol.ids import check_group_id, check_member_id, check_namespace, check_topic
from rota.protocol.limits import CONSUMER_REBALANCE_TIMEOUT_MS, REBALANCE_TIMEOUT_MS, Limits
from rota.protocol.messages import Reply, Request
from rota.wire.shapes import BUILDERS, Shape, invalid

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
    shape: Shape

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


def default_rebalance_timeout_ms(protocol_type: str) -> int:
    """Kafka's consumers get five minutes to rejoin, all others one."""
    return CONSUMER_REBALANCE_TIMEOUT_MS if protocol_type == "consumer" else REBALANCE_TIMEOUT_MS


def _join_group(*, protocol_type: str, rebalance_timeout_ms: int | None, **rest: Any) -> m.JoinGroup:
    if rebalance_timeout_ms is None:
        rebalance_timeout_ms = default_rebalance_timeout_ms(protocol_type)
    return m.JoinGroup(protocol_type=protocol_type, rebalance_timeout_ms=rebalance_timeout_ms, **rest)


def _leaving_member(**values: Any) -> m.LeavingMember:
    member = m.LeavingMember(**values)
    if not member.member_id and member.group_instance_id is None:
        raise invalid("must have a member_id or a group_instance_id")
    return member


def _topic_partitions(**values: Any) -> m.TopicPartitions:
    selected = m.TopicPartitions(**values)
    if not selected.partitions:
        raise invalid("must look like topic/0,1,2")
    return selected


def _verify_fence(*, generation_id: int | None, fencing_token: int | None, **rest: Any) -> m.VerifyFence:
    """A token says its generation."""
    if generation_id is None and fencing_token is None:
        raise invalid("fencing_token is missing, or generation_id")
    of_generation = m.NO_GENERATION if generation_id is None else generation_id
    return m.VerifyFence(generation_id=of_generation, fencing_token=fencing_token, **rest)


BUILDERS |= {
    m.JoinGroup: _join_group,
    m.LeavingMember: _leaving_member,
    m.TopicPartitions: _topic_partitions,
    m.VerifyFence: _verify_fence,
}


def _body(request: type[Request], reply: type[Reply], method: str, path: str) -> Route:
    return Route(request, reply, method, path, Carrier.BODY, _shape(request, path))


def _query(request: type[Request], reply: type[Reply], method: str, path: str) -> Route:
    return Route(request, reply, method, path, Carrier.QUERY, _shape(request, path))


def _shape(request: type[Request], path: str) -> Shape:
    return Shape(request, closed=True, path=_PARAMETER.findall(path), build=BUILDERS.get(request))


_ALL = (
    _body(m.JoinGroup, m.JoinReply, "POST", _GROUP + "/join"),
    _body(m.SyncGroup, m.SyncReply, "POST", _GROUP + "/sync"),
    _body(m.Heartbeat, m.HeartbeatReply, "POST", _GROUP + "/heartbeat"),
    _body(m.LeaveGroup, m.LeaveReply, "POST", _GROUP + "/leave"),
    _body(m.CommitOffsets, m.CommitReply, "POST", _GROUP + "/offsets"),
    _query(m.FetchOffsets, m.FetchReply, "GET", _GROUP + "/offsets"),
    _query(m.DeleteOffsets, m.DeleteOffsetsReply, "DELETE", _GROUP + "/offsets"),
    _body(m.VerifyFence, m.FenceReply, "POST", _GROUP + "/fence"),
    _query(m.GetLeader, m.LeaderReply, "GET", _GROUP + "/leader"),
    _query(m.DescribeGroup, m.DescribeReply, "GET", _GROUP),
    _query(m.DeleteGroup, m.DeleteGroupReply, "DELETE", _GROUP),
    _body(m.RebalanceGroup, m.RebalanceReply, "POST", _GROUP + "/rebalance"),
    _body(m.FreezeGroup, m.FreezeReply, "POST", _GROUP + "/freeze"),
    _body(m.QuarantineGroup, m.QuarantineReply, "POST", _GROUP + "/quarantine"),
    _body(m.DrainMember, m.DrainReply, "POST", _GROUP + "/drain"),
    _body(m.PlanGroup, m.PlanReply, "POST", _GROUP + "/plan"),
    _query(m.ListGroups, m.ListReply, "GET", PREFIX + "/groups"),
    _body(m.PutTopic, m.TopicReply, "PUT", _TOPIC),
    _query(m.GetTopic, m.TopicReply, "GET", _TOPIC),
    _query(m.DeleteTopic, m.TopicReply, "DELETE", _TOPIC),
    _query(m.ListTopics, m.ListTopicsReply, "GET", PREFIX + "/topics"),
)
ROUTES: Mapping[type[Request], Route] = MappingProxyType({route.request: route for route in _ALL})


def decode_path(parameters: Mapping[str, str]) -> dict[str, str]:
    """Check what the path names; `RejectedRequest` for the first name that is none."""
    for name, value in parameters.items():
        PATH_CHECKS[name](value)
    return dict(parameters)


def read_request(route: Route, path: Mapping[str, str], body: bytes, limits: Limits, **given: Any) -> Any:
    """Build the route's request of its path, its body and what neither says."""
    return route.shape.read(body, limits, **decode_path(path), **given)


def read_query(route: Route, path: Mapping[str, str], query: Iterable[tuple[str, str]], limits: Limits) -> Any:
    """Build the route's request of its path and a query string."""
    return route.shape.decode(route.shape.from_query(query), limits, **decode_path(path))


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
