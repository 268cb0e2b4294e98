"""A server for the adapters, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.server import Server
from tests.support.processes import Processes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("server")
    processes = Processes(folder)
    server = Server(processes, f"sqlite:///{folder / 'rota.db'}")
    server.start_and_wait()
    yield server
    processes.close()
