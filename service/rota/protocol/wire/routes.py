"""Requests over HTTP: the server reads them, the SDK writes them. `rota.protocol.calls` has their paths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from rota.protocol import messages as m
from rota.protocol.calls import CALLS, MEMBER_PATH
from rota.protocol.ids import check_group_id, check_member_id, check_namespace, check_topic
from rota.protocol.limits import Limits
from rota.protocol.messages import Request
from rota.protocol.wire.shapes import Shape, invalid

PATH_CHECKS = MappingProxyType(
    {
        "namespace": check_namespace,
        "group_id": check_group_id,
        "topic": check_topic,
        "member_id": check_member_id,
    }
)


@dataclass(frozen=True, slots=True)
class Target:
    """A request, ready to be sent: `body` is None for calls that have none."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    body: dict[str, Any] | None


def _check_leave(request: m.LeaveGroup) -> None:
    for number, leaving in enumerate(request.members):
        if not leaving.member_id and leaving.group_instance_id is None:
            raise invalid(f"members[{number}] must have a member_id or a group_instance_id")


def _check_fence(request: m.VerifyFence) -> None:
    """A token says its generation."""
    if request.generation_id == m.NO_GENERATION and request.fencing_token is None:
        raise invalid("fencing_token is missing, or generation_id")


_CHECKS: dict[type[Request], Callable[[Any], None]] = {m.LeaveGroup: _check_leave, m.VerifyFence: _check_fence}
REQUESTS: Mapping[type[Request], Shape] = MappingProxyType(
    {
        call.request: Shape(call.request, closed=True, path=call.path_names, check=_CHECKS.get(call.request))
        for call in CALLS.values()
        if call.path
    }
)
"""The fields of requests that are not in the path."""


def decode_path(parameters: Mapping[str, str]) -> dict[str, str]:
    """Check what the path names; `RejectedRequest` for the first name that is none."""
    for name, value in parameters.items():
        PATH_CHECKS[name](value)
    return dict(parameters)


def read_request(kind: type[Request], path: Mapping[str, str], body: bytes, limits: Limits, **given: Any) -> Any:
    """Build a request of this kind of its path, its body and what neither says."""
    return REQUESTS[kind].read(body, limits, **decode_path(path), **given)


def read_query(kind: type[Request], path: Mapping[str, str], query: Iterable[tuple[str, str]], limits: Limits) -> Any:
    """Build a request of this kind of its path and a query string."""
    return REQUESTS[kind].decode(REQUESTS[kind].from_query(query), limits, **decode_path(path))


def encode_request(request: Request) -> Target:
    """The method, path, query and body of a request."""
    if isinstance(request, m.LeaveGroup) and request.by_admin:
        return _removal(request)
    call, shape = CALLS[type(request)], REQUESTS[type(request)]
    path = call.path.format(**{name: quote(getattr(request, name), safe="") for name in call.path_names})
    if call.has_body:
        return Target(call.method, path, (), shape.encode(request))
    return Target(call.method, path, tuple(shape.to_query(request)), None)


def _removal(request: m.LeaveGroup) -> Target:
    """What an administrator does has a path of its own, so that it can be allowed or not by its path."""
    if len(request.members) != 1 or not request.members[0].member_id:
        raise ValueError("over HTTP an administrator removes one member at a time, by its member_id")
    (member,) = request.members
    names = {"namespace": request.namespace, "group_id": request.group_id, "member_id": member.member_id}
    path = MEMBER_PATH.format(**{name: quote(value, safe="") for name, value in names.items()})
    return Target("DELETE", path, (("reason", member.reason),) if member.reason else (), None)
