"""One server for all attacks: what one of them leaves behind would show in the next."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.abuse.attackers import allow_files
from tests.abuse.target import Target
from tests.support.processes import Processes


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def target(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Target]:
    """A server with a bystander that leads."""
    allow_files(12_000)
    folder = tmp_path_factory.mktemp("target")
    processes = Processes(folder)
    attacked = Target(processes, folder)
    yield attacked
    await attacked.close()
    processes.close()
