"""One server for all tests of this folder, and sidecars in a group of the test's own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.server import Server
from tests.sidecar.sidecars import Sidecars
from tests.support.processes import Processes

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("sidecar")
    processes = Processes(directory)
    server = Server(processes, f"sqlite:///{directory / 'rota.db'}")
    server.start_and_wait()
    yield server
    processes.close()


@pytest.fixture
def sidecars(server: Server, processes: Processes, tmp_path: Path) -> Sidecars:
    return Sidecars(processes, server.url, f"group-{next(_numbers)}", tmp_path)
