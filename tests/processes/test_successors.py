"""A static member's successor, cut off from its predecessor, which wakes up and writes on: one holder a token."""

from __future__ import annotations

import os
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic

import httpx
import pytest

from tests.processes import programs
from tests.processes.restoring import Resource
from tests.processes.server import Server
from tests.support.processes import Process, Processes

pytestmark = pytest.mark.processes

PROGRAM = Path(next(iter(programs.__path__))) / "single_writer.py"
SESSION_MS = 6_000
WRITES = 10


class History(Resource):
    """A fenced resource behind a port, with the count of each writer's writes."""

    def __init__(self) -> None:
        super().__init__()
        self.accepted: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        self._lock = threading.Lock()

    def answer(self, line: str) -> bool:
        token, name = line.split()
        with self._lock:
            is_accepted = self.write(int(token), name)
            counts = self.accepted if is_accepted else self.refused
            counts[name] = counts.get(name, 0) + 1
        return is_accepted

    @contextmanager
    def served(self) -> Iterator[int]:
        """The port where writers reach it."""
        history = self

        class Connection(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with suppress(ConnectionError):  # the writer was killed
                    for line in self.rfile:
                        self.wfile.write(b"accepted\n" if history.answer(line.decode()) else b"refused\n")

        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as server:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield server.server_address[1]
            server.shutdown()


def replace_a_frozen_writer(number: int, start: Callable[[str, str], Process], history: History, url: str) -> None:
    """Its successor starts under the same instance id while it is stopped. Then it goes on."""
    group, first_name, second_name = f"ledger-{number}", f"first-{number}", f"second-{number}"
    first = start(group, first_name)
    first.wait_until(lambda: history.accepted.get(first_name, 0) >= WRITES, "writes of the first one")
    first.pause()
    second = start(group, second_name)
    second.wait_until(lambda: history.accepted.get(second_name, 0) >= WRITES, "writes of the second one")
    first.resume()
    first.wait_until(lambda: history.refused.get(first_name, 0) >= WRITES, "refused writes of the first one")
    tokens = [int(each.wait_for_line(r"^leads (\d+)$")[1]) for each in (first, second)]
    fence = httpx.post(f"{url}/v1/namespaces/default/groups/{group}/fence", json={"fencing_token": tokens[0]})
    first.kill9()
    second.kill9()

    assert tokens[0] < tokens[1]
    assert not fence.is_success
    assert history.refused.get(second_name, 0) == 0


@pytest.mark.parametrize(
    "rounds",
    [pytest.param(1, marks=pytest.mark.thorough), pytest.param(20, marks=pytest.mark.slow)],
)
def test_a_frozen_predecessor_writes_nothing_more(processes: Processes, tmp_path: Path, rounds: int) -> None:
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}")
    histories: list[History] = []
    server.start_and_wait()
    began_s = monotonic()
    for number in range(int(os.environ.get("ROTA_ROUNDS", rounds))):
        # Of this round alone: the last write of a writer that was killed may still be on its way to its resource.
        history = History()
        histories.append(history)
        with history.served() as port:

            def start(group: str, name: str, port: int = port) -> Process:
                names = {"GROUP": group, "INSTANCE": "the-writer", "NAME": name, "SESSION_MS": str(SESSION_MS)}
                env = {**names, "ROTA_URL": server.url, "RESOURCE_PORT": str(port)}
                return processes.start(sys.executable, PROGRAM, env=env)

            replace_a_frozen_writer(number, start, history, server.url)
        assert history.twins == []
    accepted = sum(sum(history.accepted.values()) for history in histories)
    refused = sum(sum(history.refused.values()) for history in histories)
    print(f"{len(histories)} rounds, {accepted} writes accepted, {refused} refused, {monotonic() - began_s:.1f} s")
