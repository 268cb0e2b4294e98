"""The HTTP application: FastAPI with our routers, and in front of it the caller's origin and identity."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from rota.core.access.browsers import REFUSED, Site, Verdict, site_of
from rota.protocol import tracing
from rota.protocol.calls import Tag
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.server.access.guard import Guard, behind
from rota.server.access.inquiry import CanIReply, Namespaces, NamespacesReply, WhoAmIReply
from rota.server.http import routers
from rota.server.http.calls import Coordinator, calls_router
from rota.server.http.credentials import credentials_of
from rota.server.http.dependencies import PING_SECONDS, Backend, FenceKeys, no_fence_keys, no_namespaces
from rota.server.http.draining import Draining
from rota.server.http.heartbeats import HeartbeatBatchReply
from rota.server.http.member_calls import MemberCalls
from rota.server.http.openapi import complete
from rota.server.http.origins import UNPROVEN, OriginCheck, explain
from rota.server.http.rendered import HttpRefusal, Rendered, render_failure, render_problem, render_rejection
from rota.server.http.streams import HEAD_ALONE, Event, JournalReply
from rota.server.observability.metrics import Metrics
from rota.server.observability.timeline import printable
from rota.server.ports import ServedCoordinator

_MOST_QUOTED = 200
"""Characters of an unknown path that its rejection repeats."""
_METHODS = ("GET", "POST", "PUT", "DELETE")
_STRUCTS = (Coordinator, Event, HeartbeatBatchReply, JournalReply, NamespacesReply, WhoAmIReply, CanIReply)
"""The structs of answers outside of the protocol."""
_TAGS = {
    Tag.MEMBERSHIP: "Join a group, agree on a generation, fetch your share, stay alive, leave.",
    Tag.OFFSETS: "Progress per topic and partition, fenced by the generation.",
    Tag.FENCES: "The leader, and whether a fencing token is still current.",
    Tag.GROUPS: "Look at groups and administer them.",
    Tag.TOPICS: "Named things with a number of partitions.",
    Tag.EVENTS: "The journal: each change of a group, its reason, and its cause.",
    Tag.ACCESS: "The caller's identity and permissions.",
    Tag.SERVER: "Is the process up, can it take part, how is it doing.",
}
_DESCRIPTION = """\
Kafka's classic group protocol over HTTP: join a group, agree on a generation, get your share, keep heartbeating.

Each grant has a `fencing_token`: what you write to refuses lower ones.

Errors are RFC 9457 problem documents whose `code` is a name of the protocol.
Bytes are standard base64, times are integers that end in `_ms`. Calls with `wait_ms` may park for that long."""


class HttpApi:
    """The ASGI application. Connections answer plain member calls before it."""

    def __init__(self, backend: Backend, site: Site) -> None:
        self.backend = backend
        self.metrics = backend.metrics
        self._guard = backend.guard
        self._origins = OriginCheck(site, backend.metrics.browser_refused)
        self.member_calls = MemberCalls(backend, self._origins)
        """For the connections of a server that has this application alone."""
        self.fastapi = build_fastapi(guarded=self._guard is not None)
        self.fastapi.state.backend = backend

    @property
    def draining(self) -> Draining:
        return self.backend.draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._serve(scope, receive, send)
        except MemoryError as error:
            # Raised outside of a path operation. uvicorn would answer 500.
            await render_failure(error, "httpReceive").send(send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            verdict = self._origins.judge(scope)
            if verdict in REFUSED:
                await self._refuse(verdict).send(send)
                return
            if self._guard is not None:
                await self._guard.enter(credentials_of(scope))
                if verdict is Verdict.UNPROVEN:
                    self._guard.demand_proof(UNPROVEN)
            if tracing.spans is not None:
                tracing.adopt(tracing.spans, scope["headers"])
            if scope["method"] == "HEAD":  # It is answered as GET is. uvicorn leaves out the body.
                scope = {**scope, "method": "GET", HEAD_ALONE: True}
        if root := scope.get("root_path"):  # The proxy took it off the path, of which it is a part for the router.
            scope = {**scope, "path": root + scope["path"]}
        await self.fastapi(scope, receive, send)

    def _refuse(self, verdict: Verdict) -> Rendered:
        status, detail = explain(verdict)
        code = ErrorCode.INVALID_REQUEST if status == 400 else ErrorCode.GROUP_AUTHORIZATION_FAILED
        self.metrics.request_answered("refused", code)
        return render_problem(code, detail, http_status=status)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, as `/openapi.json` serves it."""
        return self.fastapi.openapi()

    def begin_drain(self) -> None:
        """From now on `/readyz` says no, and event streams end."""
        self.draining.begin()
        self.metrics.draining()


def create_app(
    coordinator: ServedCoordinator,
    limits: Limits | None = None,
    *,
    metrics: Metrics | None = None,
    ping_seconds: float = PING_SECONDS,
    fence_keys: FenceKeys = no_fence_keys,
    namespaces: Namespaces = no_namespaces,
    guard: Guard | None = None,
    site: Site | None = None,
) -> HttpApi:
    """The HTTP API of a coordinator, as an ASGI application without a lifespan of its own.

    The caller starts the coordinator first, and before stopping the server calls `begin_drain()` and the
    coordinator's `drain()`, in this order (`rota.server.lifecycle` does). Without a `guard` every caller may do
    everything. Without a `site` it answers to names of loopback, and to any name where a guard demands proof.
    """
    served = behind(guard, coordinator)
    backend = Backend(served, limits or Limits(), metrics or Metrics(), guard, fence_keys, namespaces, ping_seconds)
    return HttpApi(backend, site or site_of((), demands_proof=guard is not None))


def build_fastapi(*, guarded: bool) -> FastAPI:
    """FastAPI with all path operations. Before it serves, its `state.backend` is set."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    for router in (calls_router(), routers.events, routers.access, routers.server):
        app.include_router(router)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(MemoryError, _on_failure)

    def openapi() -> dict[str, Any]:
        if not app.openapi_schema:
            document = get_openapi(
                title="Rota",
                version=version("rota"),
                description=_DESCRIPTION,
                routes=app.routes,
                license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
                servers=[{"url": ".", "description": "This server, also below a path."}],
                tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
            )
            app.openapi_schema = complete(document, _STRUCTS, guarded=guarded)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's manual: "Extending OpenAPI"
    return app


async def _on_failure(_http: HttpRequest, error: Exception) -> Response:
    """The answer to a page of the console or to a route that raised this."""
    return render_failure(error, "httpReceive").as_response()


async def _on_http_exception(http: HttpRequest, error: Exception) -> Response:
    """What the router itself refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    headers = [(b"allow", ", ".join(_methods_at(http)).encode())] if error.status_code == 405 else []
    path = printable(http.scope["path"][:_MOST_QUOTED])
    no_route = f"no such route: {printable(http.method)} {path}"
    detail = {404: no_route, 405: "this route has other methods; see Allow"}.get(error.status_code, "refused")
    refusal = HttpRefusal(error.status_code, detail, ErrorCode.INVALID_REQUEST, headers)
    return render_rejection(refusal).as_response()


def _methods_at(http: HttpRequest) -> list[str]:
    """The methods that this path has."""
    asked = {method: {**http.scope, "method": method} for method in _METHODS}
    routes = http.app.routes
    found = [name for name, scope in asked.items() if any(each.matches(scope)[0] is Match.FULL for each in routes)]
    return [*found, "HEAD"] if "GET" in found else found
