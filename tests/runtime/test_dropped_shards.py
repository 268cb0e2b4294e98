"""The memory of a shard is free at once when the shard is another replica's."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from rota.core.replica.owned_shard import OwnedShard
from rota.server.runtime.coordinator import LocalCoordinator
from tests.runtime.conftest import a_stable_member, until


@pytest.fixture
def _no_collector() -> Iterator[None]:
    """A server's collector comes seldom to objects that have lived for long."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
async def test_nothing_keeps_a_shard_that_was_dropped(coordinator: LocalCoordinator) -> None:
    """Not even its sessions, whose timers stay set until they are due."""
    await a_stable_member(coordinator)
    in_memory = shards_in_memory()

    for owned in list(coordinator.loop.leases.owned.values()):
        coordinator.loop.give_up(owned, "for the test")
    del owned
    await until(lambda: len(coordinator.loop.shards) == coordinator.shard_count)

    assert shards_in_memory() == in_memory


def shards_in_memory() -> int:
    return sum(isinstance(each, OwnedShard) for each in gc.get_objects())
