"""The console's routes: parse the request, call the backend, render."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rota.core.replica.ports import StoreUnavailable
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.wire.documents import dump_document
from rota.protocol.wire.routes import decode_path
from rota.protocol.wire.status import STATUS
from rota.server.access.guard import Guard, behind
from rota.server.console.access import access_page
from rota.server.console.across import leaders_page, members_page, search_page, topics_page
from rota.server.console.actions import ACTIONS, Form, act, action_named, action_page
from rota.server.console.backend import Backend
from rota.server.console.browsing import PAGE_HEADERS, check_origin, fields_of, root_of
from rota.server.console.entrance import Entrance, note, place_to_go
from rota.server.console.group import as_lines, group_page, leader_page, timeline_page
from rota.server.console.listing import list_page
from rota.server.console.manual import manual_page
from rota.server.console.overview import overview
from rota.server.console.owners import shards_page
from rota.server.console.ports import ConsoleStore
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

_log = logging.getLogger(__name__)

Show = Callable[[Request], Awaitable[Response]]


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
        self._entrance = Entrance.of(guard, store)
        self._metrics = metrics
        self._draining = draining
        self._openapi = openapi
        self._ping_seconds = ping_seconds

    def router(self) -> APIRouter:
        shown: dict[str, Show] = {
            "/": self._overview,
            "/groups": self._list,
            "/members": self._members,
            "/leaders": self._leaders,
            "/topics": self._topics,
            TOPIC_PATH: self._topic,
            "/search": self._search,
            "/shards": self._shards,
            "/access": self._access,
            "/docs": self._manual,
            GROUP_PATH: self._group,
            f"{GROUP_PATH}/leader": self._leader,
            f"{GROUP_PATH}/offsets": self._offsets,
            f"{GROUP_PATH}/timeline": self._timeline,
            f"{GROUP_PATH}/journal.json": self._journal,
            f"{GROUP_PATH}/live": self._live,
            f"{GROUP_PATH}/act/{{action}}": self._ask,
            "/signin": self._sign_in_page,
        }
        sent: dict[str, Show] = {
            f"{GROUP_PATH}/act/{{action}}": self._act,
            "/signin": self._sign_in,
            "/signout": self._sign_out,
        }
        router = APIRouter(include_in_schema=False, default_response_class=Response)
        for path, show in shown.items():
            router.add_api_route(path, self._answering(show), methods=["GET"])
        for path, show in sent.items():
            router.add_api_route(path, self._answering(show), methods=["POST"])
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

    # --- pages -------------------------------------------------------------------------------------

    async def _overview(self, http: Request) -> Response:
        values = await overview(self._backend, sees_server=self._entrance.may_see_server())
        return self._page(http, "overview.html", values)

    async def _list(self, http: Request) -> Response:
        return self._page(http, "groups.html", await list_page(self._backend, http.query_params))

    async def _members(self, http: Request) -> Response:
        return self._page(http, "members.html", await members_page(self._backend, http.query_params))

    async def _leaders(self, http: Request) -> Response:
        return self._page(http, "leaders.html", await leaders_page(self._backend, http.query_params))

    async def _topics(self, http: Request) -> Response:
        return self._page(http, "topics.html", await topics_page(self._backend, http.query_params))

    async def _topic(self, http: Request) -> Response:
        namespace, topic = _named(http, "topic")
        return self._page(http, "topic.html", await topic_page(self._backend, namespace, topic, http.query_params))

    async def _search(self, http: Request) -> Response:
        return self._page(http, "search.html", await search_page(self._backend, http.query_params))

    async def _shards(self, http: Request) -> Response:
        self._entrance.check_server()
        return self._page(http, "shards.html", await shards_page(self._backend))

    async def _access(self, http: Request) -> Response:
        return self._page(http, "access.html", access_page(self._entrance.guard))

    async def _manual(self, http: Request) -> Response:
        return self._page(http, "manual.html", manual_page(self._openapi(), _base_url(http)))

    async def _group(self, http: Request) -> Response:
        done = ACTIONS.get(http.query_params.get("done", ""))
        show_all = "show_all" in http.query_params
        values = await group_page(self._backend, *_named(http), _base_url(http), show_all=show_all)
        return self._page(http, "group.html", {**values, "done": done})

    async def _leader(self, http: Request) -> Response:
        return self._page(http, "leader.html", await leader_page(self._backend, *_named(http), _base_url(http)))

    async def _timeline(self, http: Request) -> Response:
        shown = await timeline_page(self._backend, *_named(http), _base_url(http), http.query_params)
        return self._page(http, "timeline.html", shown)

    async def _offsets(self, http: Request) -> Response:
        shown = await offsets_page(self._backend, *_named(http), _base_url(http), http.query_params)
        return self._page(http, "offsets.html", shown)

    async def _journal(self, http: Request) -> Response:
        namespace, group_id = _named(http)
        shown = await timeline_page(self._backend, namespace, group_id, _base_url(http), http.query_params)
        document: dict[str, Any] = {"namespace": namespace, "group_id": group_id, "events": as_lines(shown["events"])}
        if shown["first_revision"]:
            document["first_revision"] = shown["first_revision"]
        named = {"content-disposition": f'attachment; filename="{group_id.replace(":", "_")}.json"'}
        return Response(dump_document(document), media_type="application/json", headers={**PAGE_HEADERS, **named})

    async def _live(self, http: Request) -> Response:
        """Reject a caller that may not read the group before the stream starts."""
        namespace, group_id = _named(http)
        await self._backend.describe(namespace, group_id)
        changes = self._backend.changes(namespace, group_id)
        return EventStream(changes, self._metrics, self._draining, self._ping_seconds)

    # --- actions -----------------------------------------------------------------------------------

    async def _ask(self, http: Request) -> Response:
        action = action_named(http.path_params["action"])
        form = Form(member_id=http.query_params.get("member", ""))
        values = await action_page(self._backend, *_named(http), action, form, _base_url(http))
        return self._page(http, "action.html", values)

    async def _act(self, http: Request) -> Response:
        action = action_named(http.path_params["action"])
        namespace, group_id = _named(http)
        form = Form.of(await fields_of(http))
        complaint = form.complaint(group_id)
        if not complaint:
            note(form.note)
            try:
                await act(self._backend, namespace, group_id, action, form)
            except RejectedRequest as rejected:
                if rejected.code in (ErrorCode.UNAUTHENTICATED, ErrorCode.GROUP_AUTHORIZATION_FAILED):
                    raise
                complaint = f"{rejected.detail or 'It was refused'} ({rejected.code})"
            else:
                _log.info("an administrator acted", extra={"action": action.name, "group_id": group_id})
                return _seen_other(root_of(http) + _after(namespace, group_id, action.name))
        values = await action_page(self._backend, namespace, group_id, action, form, _base_url(http), complaint)
        return self._page(http, "action.html", values, status=422)

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


def _named(http: Request, name: str = "group_id") -> tuple[str, str]:
    """Return the namespace of a path, and the group or topic in it."""
    path = decode_path({each: http.path_params[each] for each in ("namespace", name)})
    return path["namespace"], path[name]


def _after(namespace: str, group_id: str, action: str) -> str:
    """Return the next page: a deleted group has none."""
    if action == "delete":
        return "/groups" + query(namespace=namespace)
    return f"/groups/{segment(namespace)}/{segment(group_id)}" + query(done=action)


def _base_url(http: Request) -> str:
    """Return the console's URL as the browser sees it."""
    return str(http.base_url).rstrip("/")


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
