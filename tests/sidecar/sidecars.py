"""Sidecar processes, and programs that ask them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx

from tests.support.ports import free_port
from tests.support.processes import Process, Processes, rota_command

SESSION_MS = 60_000
"""No machine is so busy that a sidecar loses its share in a test that is not about that."""
SHORT_SESSION_MS = 2_000


@dataclass
class Sidecar:
    """One `rota sidecar`."""

    process: Process
    url: str
    probes: str

    def get(self, path: str = "/") -> httpx.Response:
        return httpx.get(self.url + path, trust_env=False, timeout=30)

    def post(self, path: str) -> httpx.Response:
        return httpx.post(self.url + path, trust_env=False, timeout=30)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get().json()
        return found

    def until(self, ready: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """The status, once it is as asked."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found.append(self.status())
            return ready(found[-1])

        self.process.wait_until(look, what)
        return found[-1]

    def probe(self, name: str) -> int:
        return httpx.get(f"{self.probes}/{name}", trust_env=False).status_code


@dataclass(frozen=True)
class Sidecars:
    """Starts sidecars of one group."""

    processes: Processes
    server_url: str
    group: str
    folder: Path

    def start(
        self,
        *options: str | Path,
        env: Mapping[str, str] | None = None,
        url: str | None = None,
        name: str = "pod-0",
        session_ms: int = SESSION_MS,
        prefix: Sequence[str] = (),
    ) -> Sidecar:
        """A candidate, unless the options say otherwise. `prefix` starts the command."""
        http, probes = (f"127.0.0.1:{free_port()}" for _ in range(2))
        what = () if "--work" in options else ("--lead", self.group)
        settings = ("--http", http, "--probes", probes, "--session-timeout-ms", str(session_ms))
        environment = {"ROTA_URL": url or self.server_url, "POD_NAME": f"{self.group}-{name}", **(env or {})}
        process = self.processes.start(*prefix, rota_command(), "sidecar", *what, *settings, *options, env=environment)
        process.wait_for_line("listening on")
        return Sidecar(process, f"http://{http}", f"http://{probes}")


@dataclass(frozen=True)
class Received:
    """One request that a receiver got."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """An HTTP server that writes down its requests, and answers as `answer` says."""

    def __init__(self, answer: Callable[[Received], int]) -> None:
        self.received: list[Received] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def _take(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                got = Received(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                receiver.received.append(got)
                self.send_response(answer(got))
                self.send_header("content-length", "0")
                self.end_headers()

            do_POST = do_PATCH = _take

            def log_message(self, *_: Any) -> None:
                """Nothing: the test has it all."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self._thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()
