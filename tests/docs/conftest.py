"""One server for the pages of the documentation, as a newcomer has one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes.server import Server
from tests.support.curl import put_curl_on_path
from tests.support.processes import Processes


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of the pages, with a folder, and a server for all pages: no two pages use the same names."""

    url: str
    path: str
    folder: Path


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("reader")
    processes = Processes(folder)
    server = Server(processes, f"sqlite:///{folder / 'rota.db'}")
    server.start_and_wait()
    yield Reader(server.url, f"{put_curl_on_path(folder)}:{os.environ['PATH']}", folder)
    processes.close()
