"""HTTP between the SDK and the replicas: the SDK's own client on one side, the server's encoders on the other.

On the way stand proxies that answer for themselves.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import httpx

from rota.client.errors import CoordinatorUnreachable
from rota.core.replica.ports import Answer
from rota.protocol.calls import CALLS, Call
from rota.protocol.errors import RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import Request, parks_for_ms
from rota.protocol.wire.routes import read_query, read_request
from rota.server.http.rendered import Rendered, render_answer, render_rejection
from tests.simulation.groups.transport import SimulatedTransport

if TYPE_CHECKING:
    from tests.simulation.groups.life import Life

ADDRESS = "http://rota.test"
FOREIGN_SHARE = 0.1
LONGEST_MS = 10_000
"""Longer than the SDK waits for an answer."""
_HTML = {"content-type": "text/html"}
_PAGE = b"<html><body><h1>It works!</h1></body></html>"

FOREIGN: tuple[tuple[int, dict[str, str], bytes], ...] = (
    (302, {"location": "https://login.test/?next=/v1", **_HTML}, b"<a href='https://login.test/'>Found</a>"),
    (400, _HTML, b"<html>400 Bad Request</html>"),
    (404, {"content-type": "text/plain"}, b"404 page not found\n"),
    (404, {"content-type": "application/json"}, b'{"detail": "Not Found"}'),
    (405, _HTML, b"<html>405</html>"),
    (421, _HTML, b"misdirected"),
    (425, {}, b""),
    (200, _HTML, _PAGE),
    (200, {"content-type": "application/json"}, b'{"status": "ok"}'),
    (200, {"content-type": "application/json"}, b'{"member_id": "'),
    (200, {"content-type": "application/json"}, b"\xff\xfe\x00{"),
    (200, {"content-encoding": "gzip"}, b"no gzip at all"),
    (200, {"content-encoding": "br, deflate"}, b"\x00\x01\x02"),
    (204, {}, b""),
    (502, _HTML, b"<html>502 Bad Gateway</html>"),
    (503, {"retry-after": "86400", **_HTML}, b"<html>maintenance</html>"),
    (429, {"retry-after": "9" * 5_000}, b""),
    (503, {"retry-after": "Fri, 31 Dec 2999 23:59:59 GMT"}, b""),
    (500, {"content-encoding": "deflate"}, b"half a page"),
)
"""Answers of servers that are no coordinator: status, headers, body."""


class HttpRoad(httpx.AsyncBaseTransport):
    """Takes the place of the network under `rota.client`'s HTTP transport."""

    def __init__(self, transport: SimulatedTransport, life: Life) -> None:
        self._transport = transport
        self._life = life
        self._limits = Limits()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        world = self._life.world
        if world.plan.has("foreign") and not world.is_calm and world.draws.random() < FOREIGN_SHARE:
            return await self._foreign(request)
        try:
            asked = _decoded(request, self._limits)
        except RejectedRequest as rejected:
            return _response(render_rejection(rejected))
        try:
            received = await self._transport.send(asked, timeout_ms=parks_for_ms(asked) + LONGEST_MS)
        except CoordinatorUnreachable as error:
            raise (httpx.ReadError if error.was_sent else httpx.ConnectError)(str(error)) from error
        return _response(render_answer(Answer(received.reply, received.revision, received.epoch)))

    async def _foreign(self, request: httpx.Request) -> httpx.Response:
        """A proxy's own answer. Its sender has sent the request all the same."""
        asked = _decoded(request, self._limits)
        self._transport.wire.sent(asked)
        self._transport.wire.concluded(asked)
        await asyncio.sleep(0.003)
        status, headers, body = self._life.world.draws.choice(FOREIGN)
        self._life.world.note(self._life.name, "foreign answer", (request.url.path, status, headers, body))
        return httpx.Response(status, headers=headers, stream=httpx.ByteStream(body))


def _response(rendered: Rendered) -> httpx.Response:
    return httpx.Response(rendered.status, headers=list(rendered.headers), stream=httpx.ByteStream(rendered.body))


_PATHS = tuple((call, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", call.path))) for call in CALLS.values())


def _decoded(http: httpx.Request, limits: Limits) -> Request:
    call, names = _routed(http)
    if call.has_body:
        asked: Request = read_request(call.request, names, http.content, limits)
    else:
        asked = read_query(call.request, names, http.url.params.multi_items(), limits)
    return asked


def _routed(http: httpx.Request) -> tuple[Call, dict[str, str]]:
    for call, path in _PATHS:
        found = path.fullmatch(http.url.path) if call.method == http.method else None
        if found is not None:
            return call, found.groupdict()
    raise LookupError(f"no route for {http.method} {http.url.path}")
