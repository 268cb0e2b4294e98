"""HTTP/1.1: heads, framing and bodies that are nearly what a client sends."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from rota.protocol.wire.routes import encode_request
from tests.fuzz.campaign import Broken, Target
from tests.fuzz.mutations import as_json, mutated, mutated_document
from tests.fuzz.served import HOST, Served
from tests.http.odd_requests import HIDDEN
from tests.support.examples import EXAMPLES

BUSY_S = 30.0
"""To connect, on a machine that is busy."""
IDLE_S, IDLE_CPU_S = 0.02, 0.000_3
"""A server that has used less CPU time for so long, while nothing came, has answered all that it will answer."""
LAST = b"\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
_OPENAPI = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"

_NAMES = (
    "g1",
    "g2",
    "i1",
    "",
    ".",
    "..",
    "%2e%2e",
    "%00",
    "%ff",
    "a%2fb",
    "ä",
    "x" * 250,
    "%F0%9F%92%A9",
    "g1%0d%0aX:y",
)
_HEADERS = (
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: xchunked",
    b"Content-Length: 0",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: -1",
    b"Content-Length: 5, 5",
    b"Content-Encoding: gzip",
    b"Content-Type: text/plain",
    b"Content-Type: application/json; charset=\xff",
    b"Accept: \xff",
    b"Authorization: Bearer \xff\x00",
    b"Authorization: Bearer a.b.c",
    b"Authorization: Basic !",
    b"Expect: 100-continue",
    b"Upgrade: websocket\r\nConnection: Upgrade",
    b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
    b"Host: evil.example",
    b"Host: [::1",
    b"Host: localhost:99999",
    b"Origin: null",
    b"Sec-Fetch-Site: cross-site",
    b"X-Forwarded-For: \xff, 300.1.1.1, [::1]:x",
    b'Forwarded: for="[::1',
    b"traceparent: 00-" + b"f" * 32 + b"-zz",
    b"Cookie: rota=\x80; a=b",
    b"Last-Event-ID: 10e99",
    b"If-Match: *",
    b"X: " + b"y" * 70_000,
    b"Rota-Note: %ff%00",
)


@dataclass(frozen=True, slots=True)
class Call:
    """A request of the API's document, with its example."""

    method: str
    path: str
    queries: tuple[str, ...]
    body: Any


@cache
def calls() -> tuple[Call, ...]:
    """All that `openapi.json` lists."""
    document = json.loads(_OPENAPI.read_text())
    return tuple(
        Call(method.upper(), path, tuple(_queries(operation)), _example(operation))
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method in ("get", "post", "put", "delete", "patch")
    )


def _queries(operation: dict[str, Any]) -> Iterator[str]:
    return (each["name"] for each in operation.get("parameters", ()) if each["in"] == "query")


def _example(operation: dict[str, Any]) -> Any:
    named = (each for each in EXAMPLES if each.call.operation == operation["operationId"])
    return next((encode_request(each.request).body for each in named), None)


class HttpFuzzer:
    """Sends the bytes of a case to a connection of its own and reads the statuses."""

    def __init__(self, served: Served) -> None:
        self.cpu_s = served.cpu_s
        self._port = served.http_port

    def play(self, random: Random) -> None:
        requests = [a_request(random) for _ in range(random.choice((1, 1, 1, 2, 5)))]
        sent = b"".join(requests)
        is_mutated = random.random() < 0.3
        if is_mutated:
            sent = mutated(random, sent)
        received = self._answers(sent)
        statuses = [status for status in _STATUS.findall(received) if status >= b"200"]
        if bad := [status for status in statuses if status >= b"500"]:
            raise Broken(f"{bad} to {sent[:2_000]!r}")
        # A change of bytes may make two requests of one.
        if not is_mutated and HIDDEN in received:
            raise Broken(f"the body was answered as a request: {sent[:2_000]!r}")
        if not is_mutated and len(statuses) > len(requests) + 1:
            raise Broken(f"{len(statuses)} answers to {len(requests) + 1} requests: {sent[:2_000]!r}")

    def _answers(self, sent: bytes) -> bytes:
        """All that comes until the server closes, or has nothing more to do: it may still wait for the rest."""
        received = b""
        with socket.create_connection((HOST, self._port), timeout=BUSY_S) as line, suppress(ConnectionError):
            line.sendall(sent + LAST)
            line.settimeout(IDLE_S)
            worked_s = -1.0
            while self.cpu_s() - worked_s > IDLE_CPU_S:
                worked_s = self.cpu_s()
                with suppress(TimeoutError):
                    while part := line.recv(65_536):
                        received += part
                    break
        return received


def a_request(random: Random) -> bytes:
    """One of the API's requests, with some of it changed."""
    call = random.choice(calls())
    body = b"" if call.body is None else _body(random, call.body)
    if random.random() < 0.1:
        body = b"DELETE %b HTTP/1.1\r\nHost: localhost\r\nX-Rest: " % HIDDEN
    method = random.choice((call.method,) * 8 + ("HEAD", "OPTIONS", "PATCH", "CONNECT", "get"))
    lines = [f"{method} {_path(random, call)} HTTP/1.1".encode(), b"Host: localhost"]
    if body and random.random() < 0.2:
        lines += [b"Content-Type: application/json", b"Transfer-Encoding: chunked"]
        body = _chunked(random, body)
    elif body:
        lines += [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    lines += random.choices(_HEADERS, k=random.choice((0, 0, 0, 1, 2)))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _path(random: Random, call: Call) -> str:
    path = re.sub(r"\{\w+\}", lambda _: random.choice(_NAMES[:3] * 8 + _NAMES), call.path)
    asked = random.sample(call.queries, k=min(len(call.queries), random.choice((0, 1, 2))))
    # Streams and polls would be waited for: what they wait is said below, or they end with the connection.
    pairs = [f"{name}={random.choice(('0', '-1', '', 'a', '%ff', '9' * 30, '1e3', 'g1'))}" for name in asked]
    pairs = [pair if not pair.startswith("wait_ms") else "wait_ms=0" for pair in pairs]
    return path + ("?" + "&".join(pairs) if pairs else "")


def _body(random: Random, example: Any) -> bytes:
    if random.random() < 0.2:
        return as_json(example)
    body = as_json(mutated_document(random, example))
    return mutated(random, body) if random.random() < 0.3 else body


def _chunked(random: Random, body: bytes) -> bytes:
    at = random.randint(0, len(body))
    parts = [part for part in (body[:at], body[at:]) if part]
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(part), random.choice((b"", b";a=b")), part) for part in parts)
    return chunks + b"0\r\n" + random.choice((b"", b"X: y\r\n", b"Authorization: Bearer x\r\n")) + b"\r\n"


@contextmanager
def opened() -> Iterator[HttpFuzzer]:
    with Served() as served:
        yield HttpFuzzer(served)


HTTP1 = Target("http1", "HTTP/1.1: heads, framing, paths and JSON bodies", opened)
