"""What path operations have in common: what they work with, the names in their paths, and one way to fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path
from fastapi.routing import APIRoute
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive

from rota.core.replica.ports import Answer
from rota.protocol import tracing
from rota.protocol.calls import Call
from rota.protocol.ids import NAME_PATTERN, NAMESPACE_PATTERN
from rota.protocol.limits import Limits
from rota.protocol.messages import JoinGroup, Request, parks_for_ms
from rota.protocol.wire.routes import REQUESTS, decode_path, read_query
from rota.protocol.wire.shapes import Shape
from rota.server.access.guard import ADMIT_ALL, Admission, Guard
from rota.server.access.inquiry import Namespaces
from rota.server.http.bodies import check_no_query, receive_document
from rota.server.http.draining import Draining
from rota.server.http.rendered import ApiResponse, CallerGone, render_failure
from rota.server.observability.metrics import Metrics
from rota.server.ports import ServedCoordinator

Read = TypeVar("Read")

PING_SECONDS = 15.0
FenceKeys = Callable[[], Mapping[str, Any]]
"""The JWK set of the keys that sign fencing tokens, as it is now."""
Names = dict[str, str]
"""The names in a path: of a namespace, and of a group, a topic or a member in it."""


async def no_namespaces() -> list[str]:
    """Without a store that lists them, there are none to be listed."""
    return []


def no_fence_keys() -> Mapping[str, Any]:
    return {"keys": []}


@dataclass(slots=True)
class Backend:
    """Everything that path operations work with. The application has it in its `state`."""

    coordinator: ServedCoordinator
    """Behind the guard, if there is one."""
    limits: Limits
    metrics: Metrics
    guard: Guard | None = None
    fence_keys: FenceKeys = no_fence_keys
    namespaces: Namespaces = no_namespaces
    ping_seconds: float = PING_SECONDS
    draining: Draining = field(default_factory=Draining)
    needs_restart: bool = False
    """The process cannot help itself: `/healthz` says no, so that it is restarted."""

    @property
    def admission(self) -> Admission:
        return self.guard or ADMIT_ALL


async def backend_of(http: HttpRequest) -> Backend:
    backend: Backend = http.app.state.backend
    return backend


UsesBackend = Annotated[Backend, Depends(backend_of)]


async def no_query(http: HttpRequest) -> None:
    """Reject query parameters of an operation that has none: a misspelt one must not count as absent."""
    check_no_query(http.scope)


# --- the names in a path ------------------------------------------------------------------------------


def _name(description: str, example: str, **schema: Any) -> Any:
    """A part of a path. The protocol's own checks read it, so its schema is for the document alone."""
    return Path(description=description, examples=[example], json_schema_extra=schema)


_Namespace = Annotated[
    str, _name("A tenant: nothing of two namespaces ever meets.", "default", pattern=f"^{NAMESPACE_PATTERN}$")
]
_GroupId = Annotated[str, _name("The group.", "indexers", pattern=f"^{NAME_PATTERN}$")]
_Topic = Annotated[str, _name("The topic.", "documents", pattern=f"^{NAME_PATTERN}$")]
_MemberId = Annotated[
    str, _name("A member id that the coordinator gave out.", "m-1", minLength=1, maxLength=512, pattern="^[ -~]+$")
]


async def in_namespace(namespace: _Namespace) -> Names:
    return decode_path({"namespace": namespace})


async def of_group(namespace: _Namespace, group_id: _GroupId) -> Names:
    return decode_path({"namespace": namespace, "group_id": group_id})


async def of_topic(namespace: _Namespace, topic: _Topic) -> Names:
    return decode_path({"namespace": namespace, "topic": topic})


async def of_member(namespace: _Namespace, group_id: _GroupId, member_id: _MemberId) -> Names:
    return decode_path({"namespace": namespace, "group_id": group_id, "member_id": member_id})


NAMES: Mapping[tuple[str, ...], Callable[..., Awaitable[Names]]] = {
    ("namespace",): in_namespace,
    ("namespace", "group_id"): of_group,
    ("namespace", "topic"): of_topic,
}
"""The dependency that checks the names in a call's path, by what the path has."""
GroupNames = Annotated[Names, Depends(of_group)]
MemberNames = Annotated[Names, Depends(of_member)]


# --- the request of a call ----------------------------------------------------------------------------


async def read_body(
    http: HttpRequest, backend: Backend, kind: type[Request], names: Names, read: Callable[[bytes], Read]
) -> Read:
    """What `read` makes of the body of such a request. Its caller is admitted before the body is received."""
    check_no_query(http.scope)
    backend.admission.admit_unread(kind, names["namespace"], names.get("group_id") or names.get("topic", ""))
    return await receive_document(http.scope, http.receive, backend.limits.request_max_bytes, read)


def decoded(call: Call) -> Callable[..., Awaitable[Request]]:
    """The dependency that makes the request of this call."""
    kind = call.request

    async def from_body(
        http: HttpRequest, backend: UsesBackend, names: Names = Depends(NAMES[call.path_names])
    ) -> Request:
        given = {"host": http.client.host if http.client else ""} if kind is JoinGroup else {}

        def read(body: bytes) -> Request:
            request: Request = REQUESTS[kind].read(body, backend.limits, **names, **given)
            return request

        return await read_body(http, backend, kind, names, read)

    async def from_query(
        http: HttpRequest, backend: UsesBackend, names: Names = Depends(NAMES[call.path_names])
    ) -> Request:
        request: Request = read_query(kind, names, http.query_params.multi_items(), backend.limits)
        return request

    return from_body if call.has_body else from_query


def query_of(shape: Shape) -> Callable[..., Awaitable[Any]]:
    """The dependency that reads a query string."""

    async def from_query(http: HttpRequest, backend: UsesBackend) -> Any:
        return shape.decode(shape.from_query(http.query_params.multi_items()), backend.limits)

    return from_query


# --- the answer ---------------------------------------------------------------------------------------


class Operation(APIRoute):
    """A path operation whose failures are problem documents. It counts and traces its answers."""

    def get_route_handler(self) -> Callable[[HttpRequest], Coroutine[Any, Any, Response]]:
        handle, operation = super().get_route_handler(), self.operation_id or self.name

        async def answer(http: HttpRequest) -> Response:
            try:
                return await handle(http)
            except Exception as error:
                return render_failure(error, operation).as_response()

        async def counted(http: HttpRequest) -> Response:
            spans, answered = tracing.spans, answer(http)
            response = await (answered if spans is None else _traced(spans, answered, operation))
            if isinstance(response, ApiResponse):
                metrics: Metrics = http.app.state.backend.metrics
                metrics.request_answered(operation, response.outcome)
            return response

        return counted


async def _traced(spans: tracing.Spans, answer: Awaitable[Response], operation: str) -> Response:
    with spans.within(operation, tracing.Kind.SERVER) as span:
        response = await answer
        span.note("http.response.status_code", response.status_code)
        if isinstance(response, ApiResponse):
            span.note("rota.code", response.code.name)
        if response.status_code >= 500:
            span.failed(response.code.name if isinstance(response, ApiResponse) else "")
        return response


async def call_while_there(http: HttpRequest, backend: Backend, request: Request, operation: str) -> Answer:
    """Call the coordinator; a call that may park is cancelled when its caller disconnects (`CallerGone`).

    The request's body must have been read, so that `receive` reports nothing but the disconnect.
    """
    if not parks_for_ms(request):
        return await backend.coordinator.call(request)
    call = asyncio.ensure_future(backend.coordinator.call(request))
    gone = asyncio.ensure_future(until_disconnect(http.receive))
    try:
        with backend.metrics.parked(operation):
            await asyncio.wait((call, gone), return_when=asyncio.FIRST_COMPLETED)
        if call.done():
            return call.result()
        raise CallerGone
    finally:
        call.cancel()
        gone.cancel()
        await asyncio.gather(call, gone, return_exceptions=True)


async def until_disconnect(receive: Receive) -> None:
    """Return when the caller has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass
