"""The floor of the HTTP benches: an ASGI application that reads a body and answers some JSON, and nothing else."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

BODY = b'{"generation_id":1,"state":"Stable","revision":1234,"epoch":1}'
HEADERS = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"content-length", b"%d" % len(BODY)),
]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Any request gets the same answer."""
    assert scope["type"] == "http"
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})
