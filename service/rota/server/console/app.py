"""The console's routes: parse the request, call the backend, render."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rota.core.access.rules import ANONYMOUS_SUBJECT, role_of
from rota.core.replica.ports import StoreUnavailable
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.ids import check_namespace
from rota.protocol.wire.documents import dump_document
from rota.protocol.wire.routes import decode_path
from rota.protocol.wire.status import STATUS
from rota.server.access.guard import Guard, behind
from rota.server.access.identity import NOTE
from rota.server.access.inquiry import known_caller
from rota.server.console.across import leaders_page, list_page, members_page, search_page, topics_page
from rota.server.console.actions import ACTIONS, Form, act, action_named, action_page
from rota.server.console.backend import Asked, Backend, ConsoleStore
from rota.server.console.entrance import PAGE_HEADERS, Entrance, check_origin, fields_of, place_to_go, root_of
from rota.server.console.group import as_lines, group_page, leader_page, timeline_page
from rota.server.console.manual import manual_page
from rota.server.console.overview import overview, shards_page
from rota.server.console.progress import offsets_page, topic_page
from rota.server.console.rendering import query, render, segment, static_file
from rota.server.http.dependencies import PING_SECONDS
from rota.server.http.draining import Draining
from rota.server.http.streams import EventStream
from rota.server.observability.metrics import Metrics
from rota.server.ports import ServedCoordinator

GROUP_PATH = "/groups/{namespace}/{group_id}"
TOPIC_PATH = "/topics/{namespace}/{topic}"
_FOR_EVER = "public, max-age=31536000, immutable"
_OPERATION = "console"
_IN_PATHS = ("namespace", "group_id", "topic")

_log = logging.getLogger(__name__)

Show = Callable[[Request], Awaitable[Response]]
Values = Callable[[Asked], Awaitable[dict[str, Any]]]
"""Returns the values of a template."""


class Console:
    """Pages below `/`; all their data comes from a coordinator."""

    def __init__(
        self,
        coordinator: ServedCoordinator,
        store: ConsoleStore,
        metrics: Metrics,
        draining: Draining,
        openapi: Callable[[], Mapping[str, Any]],
        ping_seconds: float = PING_SECONDS,
        *,
        guard: Guard | None = None,
    ) -> None:
        self._backend = Backend(behind(guard, coordinator), store)
        self._entrance = Entrance(guard, store)
        self._metrics = metrics
        self._draining = draining
        self._openapi = openapi
        self._ping_seconds = ping_seconds

    def router(self) -> APIRouter:
        pages: dict[str, tuple[str, Values]] = {
            "/": ("overview.html", self._overview),
            "/groups": ("groups.html", list_page),
            "/members": ("members.html", members_page),
            "/leaders": ("leaders.html", leaders_page),
            "/topics": ("topics.html", topics_page),
            TOPIC_PATH: ("topic.html", topic_page),
            "/search": ("search.html", search_page),
            "/shards": ("shards.html", self._shards),
            "/access": ("access.html", self._access),
            "/docs": ("manual.html", self._manual),
            GROUP_PATH: ("group.html", _group),
            f"{GROUP_PATH}/leader": ("leader.html", leader_page),
            f"{GROUP_PATH}/offsets": ("offsets.html", offsets_page),
            f"{GROUP_PATH}/timeline": ("timeline.html", timeline_page),
        }
        others: dict[tuple[str, str], Show] = {
            ("GET", f"{GROUP_PATH}/journal.json"): self._journal,
            ("GET", f"{GROUP_PATH}/live"): self._live,
            ("GET", f"{GROUP_PATH}/act/{{action}}"): self._ask,
            ("GET", "/signin"): self._sign_in_page,
            ("POST", f"{GROUP_PATH}/act/{{action}}"): self._act,
            ("POST", "/signin"): self._sign_in,
            ("POST", "/signout"): self._sign_out,
        }
        router = APIRouter(include_in_schema=False, default_response_class=Response)
        for path, page in pages.items():
            router.add_api_route(path, self._answering(partial(self._shown, *page)), methods=["GET"])
        for (method, path), show in others.items():
            router.add_api_route(path, self._answering(show), methods=[method])
        router.add_api_route("/static/{name}", _static, methods=["GET"])
        return router

    def _answering(self, show: Show) -> Show:
        async def answer(http: Request) -> Response:
            try:
                await self._entrance.enter(http)
                if http.method == "POST":
                    check_origin(http)
                shown, code = await show(http), ErrorCode.NONE
            except RejectedRequest as rejected:
                shown, code = self._refused(http, rejected.code, rejected.detail), rejected.code
            except StoreUnavailable:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                shown = self._refused(http, code, "the store cannot be reached")
            self._metrics.request_answered(_OPERATION, code)
            return shown

        return answer

    def _asked(self, http: Request) -> Asked:
        """Return the request with the group or topic of its path, and the namespace of its path or its query."""
        path = decode_path({name: http.path_params[name] for name in _IN_PATHS if name in http.path_params})
        namespace = path.get("namespace") or http.query_params.get("namespace") or "default"
        check_namespace(namespace)
        name = path.get("group_id") or path.get("topic") or ""
        return Asked(self._backend, http.query_params, str(http.base_url).rstrip("/"), namespace, name)

    # --- pages -------------------------------------------------------------------------------------

    async def _shown(self, template: str, values: Values, http: Request) -> Response:
        return self._page(http, template, await values(self._asked(http)))

    async def _overview(self, asked: Asked) -> dict[str, Any]:
        return await overview(asked, sees_server=self._entrance.may_see_server())

    async def _shards(self, asked: Asked) -> dict[str, Any]:
        self._entrance.check_server()
        return await shards_page(asked)

    async def _access(self, _asked: Asked) -> dict[str, Any]:
        """Show the caller's own access, as `GET /v1/whoami` does."""
        caller = known_caller(self._entrance.guard)
        rules = [(rule, role_of(rule.actions)) for rule in caller.rules]
        return {"caller": caller, "is_anonymous": caller.subject == ANONYMOUS_SUBJECT, "rules": rules}

    async def _manual(self, asked: Asked) -> dict[str, Any]:
        return manual_page(self._openapi(), asked.base_url)

    async def _journal(self, http: Request) -> Response:
        asked = self._asked(http)
        shown = await timeline_page(asked)
        document: dict[str, Any] = {"namespace": asked.namespace, "group_id": asked.name}
        document["events"] = as_lines(shown["events"])
        if shown["first_revision"]:
            document["first_revision"] = shown["first_revision"]
        named = {"content-disposition": f'attachment; filename="{asked.name.replace(":", "_")}.json"'}
        return Response(dump_document(document), media_type="application/json", headers={**PAGE_HEADERS, **named})

    async def _live(self, http: Request) -> Response:
        """Reject a caller that may not read the group before the stream starts."""
        asked = self._asked(http)
        await self._backend.describe(asked.namespace, asked.name)
        changes = self._backend.changes(asked.namespace, asked.name)
        return EventStream(changes, self._metrics, self._draining, self._ping_seconds)

    # --- actions -----------------------------------------------------------------------------------

    async def _ask(self, http: Request) -> Response:
        action = action_named(http.path_params["action"])
        form = Form(member_id=http.query_params.get("member", ""))
        return self._page(http, "action.html", await action_page(self._asked(http), action, form))

    async def _act(self, http: Request) -> Response:
        action, asked = action_named(http.path_params["action"]), self._asked(http)
        form = Form.of(await fields_of(http))
        complaint = form.complaint(asked.name)
        if not complaint:
            NOTE.set(form.note)  # The guard records it with the call.
            try:
                await act(self._backend, asked.namespace, asked.name, action, form)
            except RejectedRequest as rejected:
                if rejected.code in (ErrorCode.UNAUTHENTICATED, ErrorCode.GROUP_AUTHORIZATION_FAILED):
                    raise
                complaint = f"{rejected.detail or 'It was refused'} ({rejected.code})"
            else:
                _log.info("an administrator acted", extra={"action": action.name, "group_id": asked.name})
                place = f"/groups/{segment(asked.namespace)}/{segment(asked.name)}{query(done=action.name)}"
                if action.name == "delete":  # A deleted group has no page.
                    place = f"/groups{query(namespace=asked.namespace)}"
                return _seen_other(root_of(http) + place)
        return self._page(http, "action.html", await action_page(asked, action, form, complaint), status=422)

    # --- signing in --------------------------------------------------------------------------------

    async def _sign_in_page(self, http: Request) -> Response:
        where = place_to_go(http, http.query_params.get("next", ""))
        return self._page(http, "signin.html", {"next": where, "complaint": ""})

    async def _sign_in(self, http: Request) -> Response:
        fields = await fields_of(http)
        token, where = fields.get("token", "").strip(), place_to_go(http, fields.get("next", ""))
        complaint = await self._entrance.refusal_of(token)
        if complaint:
            return self._page(http, "signin.html", {"next": where, "complaint": complaint}, status=422)
        return await self._entrance.open_session(_seen_other(where), token, http)

    async def _sign_out(self, http: Request) -> Response:
        return await self._entrance.close_session(_seen_other(f"{root_of(http)}/signin"), http)

    # --- answers -----------------------------------------------------------------------------------

    def _page(self, http: Request, template: str, values: Mapping[str, Any], status: int = 200) -> Response:
        """Return the whole page, or only its content if an open page requests an update."""
        here = http.url.path + (f"?{http.url.query}" if http.url.query else "")
        shared = {
            "layout": "part.html" if http.headers.get("hx-request") else "layout.html",
            "root": root_of(http),
            "path": http.url.path.removeprefix(root_of(http)),
            "here": here,
            "user": self._entrance.user,
            "guarded": self._entrance.guard is not None,
        }
        body = render(template, {**shared, **values})
        return Response(body, status, {**PAGE_HEADERS, "vary": "hx-request, cookie"}, "text/html; charset=utf-8")

    def _refused(self, http: Request, code: ErrorCode, detail: str) -> Response:
        status = STATUS[code]
        values = {"code": code, "title": status.title, "detail": detail, "status": status.http}
        return self._page(http, "refused.html", values, status.http)


async def _group(asked: Asked) -> dict[str, Any]:
    return {**await group_page(asked), "done": ACTIONS.get(asked.parameters.get("done", ""))}


def _seen_other(url: str) -> Response:
    return RedirectResponse(url, 303, PAGE_HEADERS)


async def _static(http: Request) -> Response:
    found = static_file(http.path_params["name"])
    if found is None:
        return Response(b"", 404)
    content, media_type = found
    kept = _FOR_EVER if "v" in http.query_params else "no-cache"
    headers = {"cache-control": kept, "x-content-type-options": "nosniff"}
    return Response(content, headers=headers, media_type=media_type)
