"""Probes in plain HTTP for callers without credentials, such as a kubelet."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from rota.protocol.errors import ErrorCode
from rota.server.http.rendered import HttpRefusal, render_rejection

PROBES = frozenset({"/healthz", "/readyz"})
ONLY_PROBES = HttpRefusal(404, f"only {' and '.join(sorted(PROBES))} are answered here")


class ProbesOnly:
    """The API's probes and nothing else: they reveal nothing about groups. Metrics need permission.

    `refusal` is the answer to all other requests.
    """

    def __init__(self, api: ASGIApp, refusal: HttpRefusal = ONLY_PROBES) -> None:
        self._api = api
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in PROBES:
            await render_rejection(self._refusal).send(send)
            return
        await self._api(scope, receive, send)


AT_CAPACITY = HttpRefusal(
    503, "too many connections", ErrorCode.COORDINATOR_NOT_AVAILABLE, ((b"connection", b"close"),)
)
"""For a connection for which there is no room: clients see that it will not help to ask again at once."""
