"""A cluster for a test, and the seed of what happens to it."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator

import pytest

from tests.support.cluster import Cluster
from tests.support.processes import Processes


@pytest.fixture
def seed() -> int:
    """`ROTA_SEED` repeats the choices of a run, though not the scheduling of its processes."""
    chosen = int(os.environ.get("ROTA_SEED") or random.SystemRandom().randrange(2**32))
    print(f"ROTA_SEED={chosen}")
    return chosen


@pytest.fixture
async def cluster(processes: Processes) -> AsyncIterator[Cluster]:
    """Three replicas, all shards held, with a short lease."""
    async with Cluster(processes) as cluster:
        yield cluster
