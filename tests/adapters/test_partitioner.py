"""The partitioner goes through kazoo's states, by kazoo's names, and gives each thing to one member at a time."""

from __future__ import annotations

import inspect
import time

import pytest
from kazoo.recipe.partitioner import PartitionState
from kazoo.recipe.partitioner import SetPartitioner as Kazoos

from rota.adapters import partitioner as ours
from rota.adapters.partitioner import SetPartitioner
from tests.processes.server import Server

pytestmark = pytest.mark.processes

QUEUES = {f"queue-{number}" for number in range(5)}
DEADLINE_S = 60.0


def until_state(partitioner: SetPartitioner, state: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while partitioner.state != state:
        assert time.monotonic() < until, f"{partitioner.state}, not {state}"
        time.sleep(0.005)


def until_it_holds(partitioner: SetPartitioner, things: set[str]) -> None:
    """Do as kazoo's documentation says, until these are held."""
    until = time.monotonic() + DEADLINE_S
    while set(partitioner) != things:
        assert time.monotonic() < until, f"{partitioner.state} with {set(partitioner)}"
        if partitioner.release:
            partitioner.release_set()
        partitioner.wait_for_acquire(0.01)


def test_it_has_all_that_kazoo_s_has() -> None:
    public = {name for name, _ in inspect.getmembers(Kazoos) if not name.startswith("_")}

    assert public <= set(dir(SetPartitioner))
    assert {PartitionState.ALLOCATING, PartitionState.ACQUIRED, PartitionState.RELEASE, PartitionState.FAILURE} == {
        ours.ALLOCATING,
        ours.ACQUIRED,
        ours.RELEASE,
        ours.FAILURE,
    }
    assert list(inspect.signature(Kazoos).parameters)[1:3] == list(inspect.signature(SetPartitioner).parameters)[1:3]


def test_two_members_divide_the_set_and_one_leaves_its_part(server: Server) -> None:
    first = SetPartitioner(server.url, "/divide", QUEUES)
    assert first.wait_for_acquire(DEADLINE_S)
    alone = set(first)

    second = SetPartitioner(server.url, "/divide", QUEUES)
    until_state(first, ours.RELEASE)
    held_while_releasing, second_has_before_release = set(first), set(second)
    first.release_set()
    assert first.wait_for_acquire(DEADLINE_S)
    assert second.wait_for_acquire(DEADLINE_S)
    parts = set(first), set(second)

    first.finish()
    until_state(second, ours.RELEASE)
    second.release_set()
    assert second.wait_for_acquire(DEADLINE_S)
    rest = set(second)
    second.finish()

    assert alone == rest == QUEUES
    assert held_while_releasing == second_has_before_release == set()
    assert parts[0] | parts[1] == QUEUES
    assert not parts[0] & parts[1]
    assert (first.failed, list(first)) == (True, [])


def test_a_slow_release_fails_one_member_and_the_others_go_on(server: Server) -> None:
    stubborn = SetPartitioner(server.url, "/stubborn", QUEUES, release_timeout=1.0)
    assert stubborn.wait_for_acquire(DEADLINE_S)

    other = SetPartitioner(server.url, "/stubborn", QUEUES, release_timeout=1.0)
    until_state(stubborn, ours.FAILURE)
    until_it_holds(other, QUEUES)
    other.finish()
    stubborn.finish()

    assert list(stubborn) == []
