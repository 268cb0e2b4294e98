"""The calls of the protocol as path operations: each is made of its row in the table of calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends
from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from rota.core.replica.ports import ShardOwner
from rota.protocol.calls import CALLS, GROUP_PATH, Call, Tag
from rota.protocol.errors import ErrorCode as E
from rota.protocol.errors import no_member
from rota.protocol.messages import Heartbeat, LeaveGroup, LeaveReply, LeavingMember, Request
from rota.protocol.values import Reason
from rota.protocol.wire.routes import REQUESTS
from rota.protocol.wire.shapes import Shape
from rota.protocol.wire.status import Remedy
from rota.server.http.dependencies import (
    GroupNames,
    MemberNames,
    Operation,
    UsesBackend,
    call_while_there,
    decoded,
    no_query,
    query_of,
    read_body,
)
from rota.server.http.heartbeats import answer_heartbeats, read_heartbeat
from rota.server.http.openapi import answers, body, done, problems, query
from rota.server.http.rendered import render_answer, render_json, render_problem

_OWN_PORT = "The owner's port that no other worker shares, at the host that was called, or 0:"


class Coordinator(Struct, frozen=True):
    """The replica that owns a shard."""

    shard_id: int
    replica_id: str
    address: str
    """Where the owner can be reached."""
    epoch: int
    """Counts the owners that the shard has had."""
    lease_left_ms: int
    """0 or less: the lease is over, no replica owns it."""
    revision: int
    """The end of the shard's journal."""
    reported_by: str
    """The replica that answers: the owner itself if that is the same."""
    grpc_address: str
    """Where it can be reached over gRPC; empty if it cannot."""
    worker_http_port: int
    """The owner's port that no other worker shares, at the host that was called, or 0: for HTTP."""
    worker_grpc_port: int
    """The owner's port that no other worker shares, at the host that was called, or 0: for gRPC."""

    @classmethod
    def of(cls, owner: ShardOwner) -> Coordinator:
        return cls(
            owner.shard_id,
            owner.replica_id,
            owner.address,
            owner.epoch,
            owner.lease_left_ms,
            owner.last_seq,
            owner.reported_by,
            owner.grpc_address,
            owner.worker_http_port,
            owner.worker_grpc_port,
        )


class _RemoveMemberQuery(Struct, frozen=True):
    reason: Reason = ""
    """Why, for people and the journal."""


_REMOVE_MEMBER_QUERY = Shape(_RemoveMemberQuery, closed=True)


def calls_router() -> APIRouter:
    """A path operation for each call, and those of a group that are no call by themselves."""
    router = APIRouter(route_class=Operation)
    for call in CALLS.values():
        if call.path:
            shape = REQUESTS[call.request]
            router.add_api_route(
                call.path,
                heartbeat if call.request is Heartbeat else _endpoint(call),
                methods=[call.method],
                operation_id=call.operation,
                tags=[call.tag],
                summary=call.summary,
                responses=answers(call) | problems(*call.errors, reads_body=call.has_body, bounded=bool(shape.entries)),
                openapi_extra=body(shape) if call.has_body else query(shape),
            )
    router.add_api_route(
        GROUP_PATH + "/members/{member_id:path}",
        remove_member,
        methods=["DELETE"],
        operation_id="membersRemove",
        tags=[Tag.GROUPS],
        summary="Remove a member, as an administrator. The group rebalances at once.",
        responses=done("LeaveReply") | problems(E.INVALID_GROUP_ID, E.UNKNOWN_MEMBER_ID, bounded=True),
        openapi_extra=query(_REMOVE_MEMBER_QUERY),
    )
    router.add_api_route(
        GROUP_PATH + "/coordinator",
        find_coordinator,
        methods=["GET"],
        operation_id="coordinatorFind",
        tags=[Tag.GROUPS],
        summary="Which replica coordinates this group.",
        dependencies=[Depends(no_query)],
        responses=done("Coordinator") | problems(E.INVALID_GROUP_ID),
    )
    return router


def _endpoint(call: Call) -> Callable[..., Awaitable[Response]]:
    asked = Depends(decoded(call))

    async def answer(http: HttpRequest, backend: UsesBackend, request: Request = asked) -> Response:
        return render_answer(await call_while_there(http, backend, request, call.operation)).as_response()

    return answer


async def heartbeat(http: HttpRequest, backend: UsesBackend, names: GroupNames) -> Response:
    """One member's heartbeat, or those of several."""
    limits = backend.limits
    request = await read_body(http, backend, Heartbeat, names, lambda body: read_heartbeat(body, names, limits))
    return (await answer_heartbeats(http, backend, request)).as_response()


async def remove_member(
    backend: UsesBackend,
    names: MemberNames,
    why: Annotated[_RemoveMemberQuery, Depends(query_of(_REMOVE_MEMBER_QUERY))],
) -> Response:
    """One member, so its own error is the answer's."""
    namespace, group_id, member_id = names.values()
    leaving = LeavingMember(member_id, None, why.reason)
    answer = await backend.coordinator.call(LeaveGroup(namespace, group_id, (leaving,), by_admin=True))
    left = answer.reply
    if isinstance(left, LeaveReply) and left.members and left.members[0].error is not E.NONE:
        code, detail = left.members[0].error, ""
        extra: dict[str, Any] = {"revision": answer.revision, "epoch": answer.epoch}
        if code is E.UNKNOWN_MEMBER_ID:
            detail, extra["remedy"] = no_member(member_id, group_id, namespace), Remedy.CHECK_NAME
        return render_problem(code, detail, **extra).as_response()
    return render_answer(answer).as_response()


async def find_coordinator(backend: UsesBackend, names: GroupNames) -> Response:
    owner = backend.coordinator.locate(**names)
    return render_json(msgspec.json.encode(Coordinator.of(owner))).as_response()
