"""The HTTP application: routes, and one way to fail."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rota.access.browsers import REFUSED, Site, Verdict, site_of
from rota.api.access.guard import ADMIT_ALL, Guard, behind
from rota.api.access.inquiry import Namespaces
from rota.api.http.credentials import credentials_of
from rota.api.http.draining import Draining
from rota.api.http.handlers import FenceKeys, Handlers, no_fence_keys, no_namespaces
from rota.api.http.heartbeats import HeartbeatEndpoint
from rota.api.http.member_calls import MemberCalls
from rota.api.http.openapi import build_openapi
from rota.api.http.origins import UNPROVEN, OriginCheck, explain
from rota.api.http.rendered import (
    CALLER_GONE,
    HttpRefusal,
    Rendered,
    render_document,
    render_failure,
    render_problem,
    render_rejection,
)
from rota.api.http.streams import PING_SECONDS, EventStreams
from rota.api.ports import ServedCoordinator
from rota.observability import tracing
from rota.observability.metrics import Metrics
from rota.observability.printable import printable
from rota.protocol.calls import CALLS, GROUP_PATH
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import Heartbeat

Handler = Callable[[HttpRequest], Awaitable[ASGIApp]]

JWKS_PATH = "/.well-known/jwks.json"
DOCUMENT_PATH = "/openapi.json"
_MOST_QUOTED = 200
"""Characters of an unknown path that its rejection repeats."""


class HttpApi:
    """The ASGI application. Connections answer plain member calls before it."""

    def __init__(
        self,
        coordinator: ServedCoordinator,
        limits: Limits,
        metrics: Metrics,
        ping_seconds: float,
        fence_keys: FenceKeys,
        namespaces: Namespaces,
        guard: Guard | None,
        site: Site,
    ) -> None:
        coordinator = behind(guard, coordinator)
        self.metrics = metrics
        self._guard = guard
        self._origins = OriginCheck(site, metrics.browser_refused)
        self.draining = Draining()
        self.needs_restart = False
        """The process cannot help itself: `/healthz` says no, so that it is restarted."""
        admission = guard or ADMIT_ALL
        self._heartbeats = HeartbeatEndpoint(coordinator, limits, metrics, admission)
        self._handlers = Handlers(
            coordinator,
            limits,
            metrics,
            self.draining,
            fence_keys,
            namespaces,
            guard,
            admission,
            lambda: self.needs_restart,
        )
        self.member_calls = MemberCalls(coordinator, limits, metrics, guard, self._origins)
        """For the connections of a server that has this application alone."""
        self._streams = EventStreams(coordinator, limits, metrics, self.draining, ping_seconds)
        self._document: Rendered | None = None
        self.fastapi = _fastapi(limits, guarded=guard is not None)
        for path, by_method in self._routes().items():
            self.fastapi.router.add_route(path, _dispatch(by_method), methods=list(by_method), include_in_schema=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._serve(scope, receive, send)
        except MemoryError as error:
            # Raised outside of a handler. uvicorn would answer 500.
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
        if tracing.spans is not None and scope["type"] == "http":
            tracing.adopt(tracing.spans, scope["headers"])
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

    def _routes(self) -> dict[str, dict[str, Handler]]:
        routes: dict[str, dict[str, Handler]] = defaultdict(dict)
        for call in CALLS.values():
            if call.path:
                handle = (
                    self._heartbeats.answer if call.request is Heartbeat else partial(self._handlers.call, call=call)
                )
                routes[call.path][call.method] = self._answering(handle, call.operation)
        removal = self._answering(self._handlers.remove_member, "membersRemove")
        routes[GROUP_PATH + "/members/{member_id:path}"]["DELETE"] = removal
        routes[GROUP_PATH + "/coordinator"]["GET"] = self._answering(self._handlers.locate, "coordinatorFind")
        routes[GROUP_PATH + "/events"]["GET"] = self._open_stream
        routes["/v1/events"]["GET"] = self._answering(self._handlers.read_journal, "journalRead")
        routes["/v1/whoami"]["GET"] = self._answering(self._handlers.who_am_i, "whoAmI")
        routes["/v1/namespaces"]["GET"] = self._answering(self._handlers.list_namespaces, "namespacesList")
        routes["/v1/can-i"]["GET"] = self._answering(self._handlers.can_i, "canI")
        routes["/healthz"]["GET"] = self._answering(self._handlers.healthz, "healthz")
        routes["/readyz"]["GET"] = self._answering(self._handlers.readyz, "readyz")
        routes[DOCUMENT_PATH]["GET"] = self._answering(self._publish_document, "openapi")
        routes[JWKS_PATH]["GET"] = self._answering(self._handlers.publish_keys, "fenceKeys")
        routes["/metrics"]["GET"] = self._answering(self._handlers.scrape, "metrics")
        return routes

    def _answering(self, handle: Callable[[HttpRequest], Awaitable[Rendered]], operation: str) -> Handler:
        async def answer(http: HttpRequest) -> Response:
            return (await _outcome_of(handle(http), operation, self.metrics)).as_response()

        return answer

    async def _publish_document(self, _http: HttpRequest) -> Rendered:
        """The OpenAPI document, written once: writing it takes many times what an answer may hold the loop up for."""
        if self._document is None:
            self._document = render_document(self.openapi())
        return self._document

    async def _open_stream(self, http: HttpRequest) -> ASGIApp:
        try:
            return await self._streams.open(http)
        except Exception as error:
            rendered = render_failure(error, "groupsWatch")
            self.metrics.request_answered("groupsWatch", rendered.code)
            return rendered.as_response()


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
    site = site or site_of((), demands_proof=guard is not None)
    return HttpApi(
        coordinator, limits or Limits(), metrics or Metrics(), ping_seconds, fence_keys, namespaces, guard, site
    )


def _dispatch(by_method: dict[str, Handler]) -> Callable[[HttpRequest], Awaitable[Any]]:
    """One route per path, so that 405 can name all methods. HEAD is GET without the body."""

    async def dispatch(http: HttpRequest) -> ASGIApp:
        return await by_method["GET" if http.method == "HEAD" else http.method](http)

    return dispatch


def _fastapi(limits: Limits, *, guarded: bool) -> FastAPI:
    app = FastAPI(title="Rota", docs_url=None, redoc_url=None, redirect_slashes=False, openapi_url=DOCUMENT_PATH)
    # FastAPI's own would write the document anew for each caller.
    app.router.routes = [route for route in app.router.routes if getattr(route, "path", "") != DOCUMENT_PATH]
    document: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not document:
            document.update(build_openapi(limits, guarded=guarded))
        return document

    app.openapi = openapi  # type: ignore[method-assign]
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(MemoryError, _on_failure)
    return app


async def _on_failure(_http: HttpRequest, error: Exception) -> Response:
    """The answer to a page of the console or to a route that raised this."""
    return render_failure(error, "httpReceive").as_response()


async def _on_http_exception(http: HttpRequest, error: Exception) -> Response:
    """What the router itself refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
    path = printable(http.scope["path"][:_MOST_QUOTED])
    no_route = f"no such route: {printable(http.method)} {path}"
    detail = {404: no_route, 405: "this route has other methods; see Allow"}.get(error.status_code, "refused")
    refusal = HttpRefusal(error.status_code, detail, ErrorCode.INVALID_REQUEST, headers)
    return render_rejection(refusal).as_response()


# --- every request has an answer, also one that fails ------------------------------------------------


async def _outcome_of(work: Awaitable[Rendered], operation: str, metrics: Metrics) -> Rendered:
    """Await the answer, or make one of the exception that was raised instead. Counts it."""
    rendered = await (_rendered(work, operation) if tracing.spans is None else _traced(tracing.spans, work, operation))
    metrics.request_answered(operation, "GONE" if rendered is CALLER_GONE else rendered.code)
    return rendered


async def _rendered(work: Awaitable[Rendered], operation: str) -> Rendered:
    try:
        return await work
    except Exception as error:
        return render_failure(error, operation)


async def _traced(spans: tracing.Spans, work: Awaitable[Rendered], operation: str) -> Rendered:
    with spans.within(operation, tracing.Kind.SERVER) as span:
        rendered = await _rendered(work, operation)
        span.note("http.response.status_code", rendered.status)
        span.note("rota.code", rendered.code.name)
        if rendered.status >= 500:
            span.failed(rendered.code.name)
        return rendered
