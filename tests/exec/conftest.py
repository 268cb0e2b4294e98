"""Commands that write down their starts and ends, in a group of the test's own."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.exec.wrappers import Wrappers
from tests.processes.server import Server
from tests.support.processes import Processes

_numbers = itertools.count(1)


@pytest.fixture
def wrappers(shared_server: Server, processes: Processes, tmp_path: Path) -> Wrappers:
    """Starts `rota lead` and `rota work` in a group of this test's own."""
    return Wrappers(processes, shared_server.url, f"exec-{next(_numbers)}", tmp_path)
