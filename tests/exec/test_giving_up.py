"""What `rota lead` and `rota work` say while nothing is granted, and what they end with when the time is over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.exec.wrappers import Wrappers
from tests.processes.server import Server
from tests.support.processes import Process, Processes

pytestmark = pytest.mark.processes

REFUSED = r"[Cc]onnection refused"


@pytest.mark.thorough
def test_a_leadership_that_another_holds_is_75(wrappers: Wrappers) -> None:
    wrappers.lead("sleep", "60").wait_for_line("elected")
    late = wrappers.lead("echo", "never", options=("--wait", "3"))
    quiet = wrappers.lead("echo", "never", options=("--wait", "3", "--quiet"))

    assert (late.wait_for_exit(), quiet.wait_for_exit()) == (75, 75)
    assert late.output() == f"rota: {wrappers.group_id}: gave up: another candidate leads\n"
    assert quiet.output() == ""


@pytest.mark.thorough
@pytest.mark.parametrize(("wait", "cause"), [("2", REFUSED), ("0.1", "no answer from the coordinator yet")])
def test_a_server_that_cannot_be_reached_is_69(wrappers: Wrappers, wait: str, cause: str) -> None:
    lead = wrappers.lead("echo", "never", options=("--wait", wait, "--quiet"), url="http://127.0.0.1:1")

    assert lead.wait_for_exit() == 69
    assert_printed(lead, rf"gave up, and it is not known whether another member holds it: .*{cause}")


@pytest.mark.thorough
def test_a_group_that_is_full_is_69(processes: Processes, tmp_path: Path) -> None:
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}", group_max_size=1)
    server.start_and_wait()
    wrappers = Wrappers(processes, server.url, "billing", tmp_path)
    wrappers.lead("sleep", "60").wait_for_line("elected")
    late = wrappers.lead("echo", "never", options=("--wait", "3", "--quiet"))

    assert late.wait_for_exit() == 69
    assert_printed(late, "gave up, .*GROUP_MAX_SIZE_REACHED")


@pytest.mark.thorough
def test_a_topic_that_is_not_registered_is_3(wrappers: Wrappers) -> None:
    work = wrappers.work("typo", "echo", "never", options=("--wait", "3", "--quiet"))

    assert work.wait_for_exit() == 3
    assert_printed(work, "gave up: not registered: typo; `rota topics put TOPIC -p NUMBER`")


@pytest.mark.thorough
def test_partitions_that_others_hold_are_75(wrappers: Wrappers) -> None:
    topic = f"{wrappers.group_id}-one"
    wrappers.put_topic(topic, 1)
    wrappers.work(topic, "sleep", "60").wait_for_line("runs on")
    late = wrappers.work(topic, "echo", "never", options=("--wait", "5"))

    assert late.wait_for_exit() == 75
    assert_printed(late, "gave up: other members hold all partitions")


@pytest.mark.thorough
def test_work_without_a_server_is_69(processes: Processes, tmp_path: Path) -> None:
    work = Wrappers(processes, "http://127.0.0.1:1", "billing", tmp_path).work(
        "orders", "true", options=("--wait", "2")
    )

    assert work.wait_for_exit() == 69
    assert_printed(work, rf"gave up, and it is not known whether another member holds it: .*{REFUSED}")


@pytest.mark.thorough
@pytest.mark.parametrize("option", [pytest.param("--quiet", marks=pytest.mark.slow), "--again"])
def test_while_it_waits_for_a_server_the_cause_is_printed(processes: Processes, tmp_path: Path, option: str) -> None:
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}")
    lead = Wrappers(processes, server.url, "billing", tmp_path).lead("echo", "done", options=(option,))
    lead.wait_for_line(rf"^rota: group billing: not served for \d+ s, retrying: .*{REFUSED}")

    server.start()

    assert lead.wait_for_exit() == 0
    assert "done" in lead.output()
    assert ("served again after" in lead.output()) is (option != "--quiet")


def assert_printed(process: Process, pattern: str) -> None:
    """That a process which has ended has printed a line like this."""
    assert re.search(pattern, process.output()), process.output()
