"""Adapters with a member that the coordinator rejects for good: they log it, show it, and campaign again or fail."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rota.adapters.partitioner import SetPartitioner
from rota.adapters.singleton import SingletonGuard
from rota.client import Generation, InvalidRequest, sync
from tests.processes.server import Server

pytestmark = pytest.mark.processes

DEADLINE_S = 60.0
_numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    """A group of the test's own."""
    return f"rejected-{next(_numbers)}"


@contextmanager
def another_kind_of_member(server: Server, group_id: str) -> Iterator[None]:
    """While a member of another type is in the group, candidates and consumers are rejected for good."""

    def assign(_generation: Generation) -> dict[str, bytes]:
        return {}

    with sync.connect(server.url) as client:
        member = client.member(group_id, protocol_type="other", protocols={"other": b""}, assign=assign)
        with member:
            member.wait_assigned(timeout=DEADLINE_S)
            yield


def until(ready: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + DEADLINE_S
    while not ready():
        assert time.monotonic() < give_up_at, what
        time.sleep(0.01)


def test_a_rejected_guard_logs_an_error_and_leads_once_it_may(
    server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    guard = SingletonGuard(server.url, name)
    with another_kind_of_member(server, name):
        guard.start()
        until(lambda: guard.failure, "failure")
        rejection = guard.failure
        assert not guard.is_leader
    is_elected = guard.wait_elected(DEADLINE_S)
    failure = guard.failure
    guard.stop()

    assert isinstance(rejection, InvalidRequest)
    assert (is_elected, failure) == (True, None)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert any(f"election {name}: not a candidate: " in text and "it joins again in" in text for text in errors)


def test_a_guard_without_a_server_says_so_and_stops(name: str) -> None:
    guard = SingletonGuard("http://127.0.0.1:1", name)
    guard.start()
    until(lambda: guard.trouble, "trouble")

    trouble, failure = guard.trouble, guard.failure
    guard.stop()

    assert ("onnection refused" in trouble, failure) == (True, None)


class Broken:
    """A scheduler that can be neither resumed nor paused."""

    running = True

    def resume(self) -> None:
        raise SystemExit("the scheduler is broken")

    pause = resume


def test_schedulers_that_raise_do_not_end_the_candidacy(
    server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    guard = SingletonGuard(server.url, name)
    guard._schedulers.append(Broken())
    with sync.connect(server.url) as client, guard:
        assert guard.wait_elected(DEADLINE_S)
        until(lambda: guard.failure, "failure")
        with SingletonGuard(server.url, name) as other:
            until(lambda: len(client.describe_group(name).members) == 2, "two candidates")
            client.rebalance_group(name, step_down=True)
            assert other.wait_elected(DEADLINE_S)
        assert guard.wait_elected(DEADLINE_S)
        until(lambda: len(raised(caplog)) == 3, "elected, lost, elected")

    assert "a scheduler raised; the candidacy goes on" in raised(caplog)[0].getMessage()


def raised(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.exc_info and "scheduler" in record.getMessage()]


def test_a_rejected_set_partitioner_fails(server: Server, name: str, caplog: pytest.LogCaptureFixture) -> None:
    with another_kind_of_member(server, f"set-partitioner.{name}"):
        partitioner = SetPartitioner(server.url, f"/{name}", {"a", "b"})

        assert not partitioner.wait_for_acquire(DEADLINE_S)

    assert partitioner.failed
    until(lambda: partitioner.failure, "failure")
    assert isinstance(partitioner.failure, InvalidRequest)
    assert any("failed for good; make a new one" in record.getMessage() for record in caplog.records)
    partitioner.finish()


def test_a_wait_to_be_elected_ends_with_the_candidacy(server: Server, name: str) -> None:
    with SingletonGuard(server.url, name) as leader:
        assert leader.wait_elected(DEADLINE_S)
        second = SingletonGuard(server.url, name)
        second.start()
        outcomes: list[bool] = []
        waiting = threading.Thread(target=lambda: outcomes.append(second.wait_elected()))
        waiting.start()
        second.stop()
        waiting.join(DEADLINE_S)
    assert outcomes == [False]
