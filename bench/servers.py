"""The servers that HTTP benches talk to, each a process of its own, and what they cost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.ports import free_port
from tests.support.processes import Process, rota_command

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Server:
    """A process that listens on `port`."""

    pid: int
    port: int

    def cpu_ms(self) -> float:
        """CPU time of the process so far: user's and system's, of all its threads.

        The scheduler's own account, because the one in /proc/PID/stat counts in steps of 10 ms.
        """
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e6


@contextmanager
def rota_server(directory: Path, store_url: str) -> Iterator[Server]:
    """`rota serve` on a store that is there, ready to answer."""
    port = free_port()
    where = ["--store", store_url, "--http", f"{HOST}:{port}", "--log-level", "warning"]
    command: list[str | Path] = [rota_command(), "serve", *where]
    with Process(command, directory / f"rota-{port}.log", cwd=ROOT) as process:
        process.wait_for_url(f"http://{HOST}:{port}/readyz")
        yield Server(process.pid, port)


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
