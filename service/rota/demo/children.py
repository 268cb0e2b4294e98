"""The demo's processes: started with a pipe that ends with the demo, watched, killed, and always cleaned up."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

_START_DEADLINE_S = 30.0
_STOP_DEADLINE_S = 10.0
_POLL_S = 0.02


class ChildFailed(Exception):
    """A process of the demo ended by itself; the message has the end of its output."""


class Child:
    """One process: `python -P -m MODULE`. Its standard input is a pipe that ends with the demo."""

    def __init__(self, module: str, arguments: list[str], log: Path) -> None:
        self.name = log.stem
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill9(self) -> None:
        """Send SIGKILL: it makes no last commit."""
        self._process.kill()
        self._process.wait()

    def check(self) -> None:
        """Raise `ChildFailed` if it has ended."""
        if not self.is_running:
            last = self._log.read_text(errors="replace").strip().splitlines()[-3:]
            raise ChildFailed(f"{self.name} ended with {self._process.returncode}: {' | '.join(last)}")

    def log_lines(self) -> list[str]:
        return self._log.read_text(errors="replace").splitlines()

    def end(self) -> None:
        """Ask it to stop, then kill it."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill9()
        if self._process.stdin is not None:
            self._process.stdin.close()


class Children:
    """All processes of one demo; leaving the block ends them, the workers first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in reversed(self._started):
            child.end()

    def start(self, name: str, module: str, *arguments: str) -> Child:
        child = Child(module, list(arguments), self._folder / f"{name}.log")
        self._started.append(child)
        return child

    def start_server(self) -> str:
        """Start a server on a new store in the demo's folder; return its URL when it listens."""
        server = self.start("server", "rota.demo.server", f"sqlite:///{self._folder / 'rota.db'}")
        give_up_at = time.monotonic() + _START_DEADLINE_S
        while (url := _listening_url(server.log_lines())) is None:
            server.check()
            if time.monotonic() > give_up_at:
                raise ChildFailed("the server does not start")
            time.sleep(_POLL_S)
        return url


def _listening_url(lines: list[str]) -> str | None:
    for line in lines:
        if '"listening"' in line:
            return str(json.loads(line)["url"])
    return None


def set_when_orphaned(stopped: asyncio.Event) -> None:
    """Set the event when standard input ends: it is a pipe, and the process at its other end has ended."""
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def on_readable() -> None:
        # The demo never writes to it, so it is readable only when the demo has ended.
        loop.remove_reader(descriptor)
        stopped.set()

    loop.add_reader(descriptor, on_readable)
