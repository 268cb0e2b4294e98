"""One server for all tests of this folder, and commands that tell what happens to them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exec.wrappers import Wrappers
from tests.processes.server import Server
from tests.support.processes import Processes

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("exec")
    processes = Processes(directory)
    server = Server(processes, f"sqlite:///{directory / 'rota.db'}")
    server.start_and_wait()
    yield server
    processes.close()


@pytest.fixture
def wrappers(server: Server, processes: Processes, tmp_path: Path) -> Wrappers:
    """Starts `rota lead` and `rota work` in a group of this test's own."""
    return Wrappers(processes, server.url, f"group-{next(_numbers)}", tmp_path)
