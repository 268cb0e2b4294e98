"""A server for the examples to talk to, with keys to sign fencing tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.fencing.keys import new_key
from tests.processes.server import Server
from tests.support.processes import Processes

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    key = tmp_path / "fence.pem"
    key.write_bytes(new_key())
    monkeypatch.setenv("ROTA_FENCE_KEYS", str(key))
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}")
    server.start_and_wait()
    yield server
    server.process.terminate()
