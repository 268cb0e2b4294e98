"""The servers that benches talk to, each in processes of its own, and what they cost."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.setting import HOST
from tests.support.ports import free_port
from tests.support.processes import Process, rota_command

ROOT = Path(__file__).resolve().parent.parent
SERVICE = "ROTA_BENCH_SERVICE"
"""Names the folder `service` of another checkout. Its server is measured then, for figures of before a change."""


@dataclass(frozen=True, slots=True)
class Server:
    """A process that listens on `port`, and on `grpc_port` where it speaks gRPC."""

    pid: int
    port: int
    grpc_port: int = 0

    def cpu_ms(self) -> float:
        """CPU time of the process and of those it started, so far: user's and system's, of all threads.

        The scheduler's own account, because the one in /proc/PID/stat counts in steps of 10 ms.
        """
        return sum(self.cpu_ms_of_each())

    def cpu_ms_of_each(self) -> list[float]:
        """The same for each of the processes."""
        started = [child.pid for child in psutil.Process(self.pid).children(recursive=True)]
        return [_cpu_ms(pid) for pid in (self.pid, *started)]

    def resident_kb(self) -> float:
        """Memory of the process."""
        return float(psutil.Process(self.pid).memory_info().rss) / 1_000


def _cpu_ms(pid: int) -> float:
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e6


@contextmanager
def rota_server(
    directory: Path, store_url: str, *options: str, limits: Mapping[str, int] | None = None
) -> Iterator[Server]:
    """`rota serve` on a store that is there, ready to answer over HTTP and gRPC.

    `limits` are fields of `rota.protocol.limits.Limits` that differ from its defaults.
    """
    port, grpc_port = free_port(), free_port()
    where = ["--store", store_url, "--http", f"{HOST}:{port}", "--grpc", f"{HOST}:{grpc_port}"]
    command: list[str | Path] = [rota_command(), "serve", *where, "--log-level", "warning", *options]
    env = os.environ | {f"ROTA_LIMITS__{name.upper()}": str(limit) for name, limit in (limits or {}).items()}
    if SERVICE in os.environ:
        env["PYTHONPATH"] = os.environ[SERVICE]
    with Process(command, directory / f"rota-{port}.log", cwd=ROOT, env=env) as process:
        process.wait_for_url(f"http://{HOST}:{port}/readyz")
        yield Server(process.pid, port, grpc_port)


@contextmanager
def bare_grpc_server(directory: Path) -> Iterator[Server]:
    """Run a `grpc.aio` server that echoes messages, with the same event loop and options as ours."""
    port = free_port()
    command: list[str | Path] = [sys.executable, "-m", "bench.bare_grpc", str(port)]
    with Process(command, directory / f"bare-grpc-{port}.log", cwd=ROOT) as process:
        process.wait_for_line("listening")
        yield Server(process.pid, 0, port)


@contextmanager
def bare_server(directory: Path) -> Iterator[Server]:
    """Run uvicorn with the same event loop and parser as ours, and an application that does nothing."""
    port = free_port()
    options = ["--host", HOST, "--port", str(port), "--loop", "uvloop", "--http", "httptools", "--lifespan", "off"]
    quiet = ["--no-access-log", "--no-server-header", "--log-level", "warning", "--ws", "none", "--no-proxy-headers"]
    command = [sys.executable, "-m", "uvicorn", "bench.bare_app:app", *options, *quiet]
    with Process(command, directory / f"bare-{port}.log", cwd=ROOT) as process:
        process.wait_for_url(f"http://{HOST}:{port}/")
        yield Server(process.pid, port)


def get_json(server: Server, path: str) -> Any:
    """What the server answers to a GET."""
    return httpx.get(f"http://{HOST}:{server.port}{path}", trust_env=False).raise_for_status().json()
