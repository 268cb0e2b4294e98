"""The sidecar's API on loopback: the old leader-elector's `GET /`, the leader, the share, and events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from datetime import UTC, datetime
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from rota.agents.sidecar.membership import Membership, Progress
from rota.agents.sidecar.status import Change, Changes, State, Status
from rota.protocol.defaults import SIDECAR_PAUSE_MS, SIDECAR_WAIT_MS
from rota.protocol.suggestions import unknown

KEEP_ALIVE_S = 15.0
_LONGEST_WAIT_S = 300.0
_LONGEST_PAUSE_MS = 3_600_000
_NEVER_CACHED = {"Cache-Control": "no-store"}

_REACHED: dict[str, Callable[[Status], bool]] = {
    "leader": lambda status: status.state is State.LEADER,
    "follower": lambda status: status.state is State.FOLLOWER,
    "assigned": lambda status: status.state is State.ASSIGNED and bool(status.assignment),
}

Handler = Callable[[Request], Awaitable[Response]]


class SidecarApp:
    """The routes for one membership and its changes."""

    def __init__(self, membership: Membership, changes: Changes, progress: Progress) -> None:
        self._membership = membership
        self._changes = changes
        self._progress = progress
        post, get = ["POST"], ["GET"]
        self.routes = [
            Route("/", _knowing((), self._root), methods=get),
            Route("/leader", _knowing((), self._if(State.LEADER)), methods=get),
            Route("/follower", _knowing((), self._if(State.FOLLOWER)), methods=get),
            Route("/assignments", _knowing((), self._assignments), methods=get),
            Route("/events", _knowing((), self._events), methods=get),
            Route("/wait", _knowing(("for", "timeout"), self._wait), methods=get),
            Route("/progress", _knowing((), self._made_progress), methods=post),
            Route("/resign", _knowing(("pause_ms",), self._resign), methods=post),
            Route("/drain", _knowing((), self._drain), methods=post),
        ]

    def asgi(self) -> Starlette:
        return Starlette(routes=self.routes)

    async def _root(self, _request: Request) -> Response:
        return self._answer(200)

    def _if(self, state: State) -> Handler:
        """Return 200 in that state and 503 in any other, for load balancers and `curl -f`."""

        async def answer(_request: Request) -> Response:
            return self._answer(200 if self._membership.status().state is state else 503)

        return answer

    async def _assignments(self, _request: Request) -> Response:
        status = self._membership.status()
        return self._answer(200 if status.state is State.ASSIGNED else 503)

    async def _events(self, request: Request) -> Response:
        listening = self._changes.listen(request.headers.get("last-event-id", ""))
        headers = {**_NEVER_CACHED, "X-Accel-Buffering": "no"}
        return StreamingResponse(_as_sse(listening), media_type="text/event-stream", headers=headers)

    async def _wait(self, request: Request) -> Response:
        """Return 200 as soon as the state is reached, 503 after the timeout."""
        wanted, timeout_s = (
            request.query_params.get("for", "change"),
            _number(request, "timeout", SIDECAR_WAIT_MS / 1000),
        )
        if timeout_s is None or (wanted != "change" and wanted not in _REACHED):
            known = ", ".join(("change", *_REACHED))
            return _problem(f"for must be one of {known}, and timeout a number of seconds")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(timeout_s, _LONGEST_WAIT_S)):
                await self._comes(wanted)
                return self._answer(200)
        return self._answer(503)

    async def _comes(self, wanted: str) -> None:
        """Return when the state is reached."""
        last, reached = self._changes.last, _REACHED.get(wanted)
        if reached is not None and reached(self._membership.status()):
            return
        async with contextlib.aclosing(self._changes.listen("" if last is None else last.event_id)) as changes:
            async for _ in changes:
                if reached is None or reached(self._membership.status()):
                    return
        await asyncio.Event().wait()  # The sidecar is stopping, so the call ends.

    async def _made_progress(self, _request: Request) -> Response:
        self._progress.made()
        return Response(status_code=204)

    async def _resign(self, request: Request) -> Response:
        """Release the share, then answer. The member joins again after `pause_ms`."""
        pause_ms = _number(request, "pause_ms", SIDECAR_PAUSE_MS)
        if pause_ms is None or pause_ms > _LONGEST_PAUSE_MS:
            return _problem(f"pause_ms must be a number up to {_LONGEST_PAUSE_MS}")
        await self._membership.resign("the program resigned")
        self._progress.come_back_in(pause_ms / 1000)
        return self._answer(200)

    async def _drain(self, _request: Request) -> Response:
        """Release the share permanently, then answer."""
        await self._membership.drain("the program drains")
        return self._answer(200)

    def _answer(self, status_code: int) -> Response:
        last = self._changes.last
        last_update = None if last is None else datetime.fromtimestamp(last.at_ms / 1000, UTC).isoformat()
        document = {**self._membership.status().document(), "last_update": last_update}
        return JSONResponse(document, status_code, headers=_NEVER_CACHED)


def probes(membership: Membership) -> Starlette:
    """Serve the kubelet's probes on a separate port. They do not depend on leading.

    A 503 has the reason, because `kubectl describe pod` shows it.
    """

    def route(path: str, ready: Callable[[], bool]) -> Route:
        async def answer(_request: Request) -> Response:
            return PlainTextResponse("ok\n") if ready() else PlainTextResponse(f"{why_not()}\n", 503)

        return Route(path, answer, methods=["GET"])

    def why_not() -> str:
        return "draining" if membership.drains else membership.member.trouble or "the coordinator has not answered yet"

    def can_take_part() -> bool:
        return membership.has_joined and not membership.drains

    return Starlette(
        routes=[
            route("/healthz", lambda: True),
            route("/startupz", lambda: membership.has_joined),
            route("/readyz", can_take_part),
        ]
    )


async def _as_sse(changes: AsyncIterator[Change]) -> AsyncIterator[str]:
    """Yield server-sent events, with periodic comments, because proxies close silent connections."""
    coming = asyncio.ensure_future(anext(changes, None))
    try:
        while True:
            done, _ = await asyncio.wait((coming,), timeout=KEEP_ALIVE_S)
            if not done:
                yield ": still there\n\n"
                continue
            change = coming.result()
            if change is None:
                return
            yield f"id: {change.event_id}\nevent: {change.kind}\ndata: {json.dumps(change.document())}\n\n"
            coming = asyncio.ensure_future(anext(changes, None))
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


def _knowing(names: Collection[str], handle: Handler) -> Handler:
    """Wrap `handle` for requests with only these query parameters; answer 400 for others, which may be misspelt."""

    async def answer(request: Request) -> Response:
        for name in request.query_params:
            if name not in names:
                return _problem(unknown("query parameter", name, names))
        return await handle(request)

    return answer


def _number(request: Request, name: str, default: float) -> float | None:
    """Return a query parameter that is not negative; None if it is invalid."""
    try:
        found = float(request.query_params.get(name, default))
    except ValueError:
        return None
    return found if 0 <= found < float("inf") else None


def _problem(detail: str) -> Response:
    document: dict[str, Any] = {"title": "the request is malformed", "status": 400, "detail": detail}
    return JSONResponse(document, 400, media_type="application/problem+json")
