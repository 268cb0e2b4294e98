"""Probes in plain HTTP for callers without credentials, such as a kubelet."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from rota.api.http.rendered import HttpRefusal, render_problem, render_rejection
from rota.protocol.errors import ErrorCode

PROBES = frozenset({"/healthz", "/readyz"})


class ProbesOnly:
    """The API's probes and nothing else: they reveal nothing about groups. Metrics need permission."""

    def __init__(self, api: ASGIApp) -> None:
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in PROBES:
            detail = f"only {' and '.join(sorted(PROBES))} are answered here"
            await render_problem(ErrorCode.INVALID_REQUEST, detail, http_status=404).send(send)
            return
        await self._api(scope, receive, send)


class AtCapacity:
    """The same on a connection for which there is no room: clients see that it will not help to ask again at once."""

    def __init__(self, api: ASGIApp) -> None:
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in PROBES:
            headers = ((b"connection", b"close"),)
            refusal = HttpRefusal(503, "too many connections", ErrorCode.COORDINATOR_NOT_AVAILABLE, headers)
            await render_rejection(refusal).send(send)
            return
        await self._api(scope, receive, send)
