"""Adapters with a member that the coordinator rejects for good: they log it, show it, and campaign again or fail."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import tooz
from tooz import coordination

from rota.adapters.candidacy import Candidacy
from rota.adapters.partitioner import SetPartitioner
from rota.adapters.singleton import SingletonGuard
from rota.client import Generation, InconsistentGroupProtocol, sync
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

    assert isinstance(rejection, InconsistentGroupProtocol)
    assert (is_elected, failure) == (True, None)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert any(f"election {name}: not a candidate: " in text and "it joins again in" in text for text in errors)


def test_a_rejected_guard_stops_without_an_error(server: Server, name: str) -> None:
    with another_kind_of_member(server, name):
        guard = SingletonGuard(server.url, name)
        guard.start()
        until(lambda: guard.failure, "failure")

        guard.stop()

        assert not guard.is_leader


def test_a_guard_without_a_server_says_so_and_stops(name: str) -> None:
    guard = SingletonGuard("http://127.0.0.1:1", name)
    guard.start()
    until(lambda: guard.trouble, "trouble")

    trouble, failure = guard.trouble, guard.failure
    guard.stop()

    assert ("onnection refused" in trouble, failure) == (True, None)


def test_callbacks_that_raise_do_not_end_the_candidacy(
    server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise SystemExit("the scheduler is broken")

    with sync.connect(server.url) as client, sync.connect(server.url) as other_client:
        candidacy = Candidacy(client, name, on_elected=fail, on_lost=fail)
        candidacy.start()
        assert candidacy.wait_elected(DEADLINE_S)
        until(lambda: candidacy.failure, "failure")
        with Candidacy(other_client, name) as other:
            until(lambda: len(client.describe_group(name).members) == 2, "two candidates")
            client.rebalance_group(name, step_down=True)
            assert other.wait_elected(DEADLINE_S)
        assert candidacy.wait_elected(DEADLINE_S)
        until(lambda: len(raised(caplog)) == 3, "elected, lost, elected")
        candidacy.stop()

    assert "a callback raised; the candidacy goes on" in raised(caplog)[0].getMessage()


def raised(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.exc_info and "callback" in record.getMessage()]


def test_a_rejected_set_partitioner_fails(server: Server, name: str, caplog: pytest.LogCaptureFixture) -> None:
    with another_kind_of_member(server, f"set-partitioner.{name}"):
        partitioner = SetPartitioner(server.url, f"/{name}", {"a", "b"})

        assert not partitioner.wait_for_acquire(DEADLINE_S)

    assert partitioner.failed
    until(lambda: partitioner.failure, "failure")
    assert isinstance(partitioner.failure, InconsistentGroupProtocol)
    assert any("failed for good; make a new one" in record.getMessage() for record in caplog.records)
    partitioner.finish()


def test_a_rejected_tooz_member_is_a_tooz_error_and_stops(server: Server) -> None:
    driver = coordination.get_coordinator(f"rota://{server.url.removeprefix('http://')}", b"host-1")
    driver.start()
    driver.create_group(b"g").get()
    with another_kind_of_member(server, "tooz.group.Zw"):
        with pytest.raises(tooz.ToozError):
            driver.join_group(b"g").get()
        lock = driver.get_lock(b"l")
    assert lock.acquire()

    driver.stop()


def test_a_candidacy_whose_client_is_closed_ends(server: Server, name: str, caplog: pytest.LogCaptureFixture) -> None:
    with sync.connect(server.url) as client:
        candidacy = Candidacy(client, name)
        candidacy.start()
        assert candidacy.wait_elected(DEADLINE_S)
    campaigning = candidacy._campaigning
    assert campaigning is not None

    campaigning.join(DEADLINE_S)

    assert not campaigning.is_alive()
    assert any("its client is closed" in record.getMessage() for record in caplog.records)
    candidacy.stop()


def test_a_wait_to_be_elected_ends_with_the_candidacy(server: Server, name: str) -> None:
    with sync.connect(server.url) as client, Candidacy(client, name) as leader:
        assert leader.wait_elected(DEADLINE_S)
        second = Candidacy(client, name)
        second.start()
        outcomes: list[bool] = []
        waiting = threading.Thread(target=lambda: outcomes.append(second.wait_elected()))
        waiting.start()
        second.stop()
        waiting.join(DEADLINE_S)
    assert outcomes == [False]
