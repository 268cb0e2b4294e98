"""Sidecars in a group of the test's own."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.processes.server import Server
from tests.sidecar.sidecars import Sidecars
from tests.support.processes import Processes

_numbers = itertools.count(1)


@pytest.fixture
def sidecars(shared_server: Server, processes: Processes, tmp_path: Path) -> Sidecars:
    return Sidecars(processes, shared_server.url, f"sidecar-{next(_numbers)}", tmp_path)
