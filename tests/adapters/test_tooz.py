"""The tooz driver passes the tests that tooz has for its own drivers, and some of ours."""

from __future__ import annotations

import os
import re
import sys
import time
import uuid
from collections.abc import Iterator

import pytest
from tooz import coordination

from rota.adapters.tooz import RotaDriver
from rota.adapters.tooz_lock import RotaLock
from tests.processes.server import Server
from tests.support.processes import Processes

pytestmark = pytest.mark.processes

DEADLINE_S = 60.0
SESSION_MS = 60_000
"""Nothing here is about members that fall silent, and no machine is so busy that one does."""


def url_of(server: Server) -> str:
    return f"rota://127.0.0.1:{server.port}?session_timeout_ms={SESSION_MS}"


@pytest.mark.slow
def test_the_driver_passes_the_tests_that_tooz_has_for_its_own(processes: Processes, server: Server) -> None:
    """In a process of its own, for they leave coordinators open. Some are for other drivers, and skip themselves."""
    theirs = (
        "-m",
        "pytest",
        "-c",
        os.devnull,
        "-p",
        "no:cacheprovider",
        "-p",
        "no:unraisableexception",
        "-W",
        "ignore",
        "-v",
        "-o",
        "faulthandler_timeout=40",
    )
    chosen = ("--pyargs", "tooz.tests.test_coordination", "-k", "TestAPI")
    running = processes.start(sys.executable, *theirs, *chosen, env={"TOOZ_TEST_URL": url_of(server)})

    code = running.wait_for_exit(deadline_seconds=120.0)

    passed = re.search(r"(\d+) passed", running.output())
    assert code == 0
    assert passed is not None
    assert int(passed[1]) >= 55


@pytest.fixture
def drivers(server: Server) -> Iterator[list[RotaDriver]]:
    started = []
    for number in range(2):
        driver = coordination.get_coordinator(url_of(server), f"member-{number}-{uuid.uuid4()}".encode())
        assert isinstance(driver, RotaDriver)
        driver.start()
        started.append(driver)
    yield started
    for driver in started:
        driver.stop()


def test_a_waiting_lock_is_granted_with_a_higher_token(drivers: list[RotaDriver]) -> None:
    first, second = (driver.get_lock(b"nightly") for driver in drivers)
    assert isinstance(first, RotaLock)
    assert isinstance(second, RotaLock)

    assert first.acquire()
    token = first.token
    assert not second.acquire(blocking=0.2)
    assert first.release()
    assert second.acquire(timeout=DEADLINE_S)

    assert token is not None
    assert (second.token or 0) > token
    assert (first.is_still_owner(), second.is_still_owner()) == (False, True)


def test_the_next_leader_is_elected_when_the_first_goes(drivers: list[RotaDriver]) -> None:
    first, second = drivers
    elected: list[bytes] = []
    for driver in drivers:
        driver.watch_elected_as_leader(b"group", lambda event: elected.append(event.member_id))
        driver.run_watchers()
    before = second.get_leader(b"group").get()

    first.stand_down_group_leader(b"group")
    until = time.monotonic() + DEADLINE_S
    while len(elected) < 2 and time.monotonic() < until:
        second.run_watchers()

    assert before == elected[0]
    assert second.get_leader(b"group").get() == elected[1] != elected[0]


def test_capabilities_and_names_may_be_any_bytes(drivers: list[RotaDriver]) -> None:
    first, second = drivers
    group = "any/thing, é".encode()
    first.join_group_create(group, {"weight": 3, "zones": ["a", "b"]})
    second.join_group(group, {}).get()

    found = second.get_members_with_capabilities(group).get()

    assert group in second.get_groups().get()
    assert sorted(found.values(), key=str) == sorted([{"weight": 3, "zones": ["a", "b"]}, {}], key=str)
