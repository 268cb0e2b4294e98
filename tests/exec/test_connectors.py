"""`rota work --connector`: a command for each connector and task, which runs on while other work moves."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from rota.cli.members import ConfigOffsetFile
from tests.exec.wrappers import Wrappers, environment_of, guardian_of
from tests.support.processes import Process

pytestmark = pytest.mark.processes

# Appends its start and its end to a log that all workers share, so that the lines are in one order.
TASK = """
import os, signal, sys, time
me = os.environ["ROTA_CONNECTOR"].rpartition("-")[2] + "/" + os.environ["ROTA_TASK"]
def note(what):
    with open(sys.argv[1], "a") as log:
        log.write(f"{what} {me} {os.environ['ROTA_MEMBER_ID']}\\n")
def stop(number, frame):
    note("stopped")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
note("started")
while True:
    time.sleep(0.05)
"""


class Log:
    """The items that run, by the lines of all commands."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[list[str]]:
        text = self.path.read_text() if self.path.exists() else ""
        return [line.split() for line in text.splitlines()]

    def running(self) -> dict[str, str]:
        """The member that runs each item; fails where two have run one at a time."""
        holders: dict[str, str] = {}
        for what, item, member in self.lines():
            if what == "started":
                assert item not in holders, f"{item} was started twice"
                holders[item] = member
            else:
                assert holders.pop(item) == member
        return holders

    def shares(self) -> list[int]:
        return sorted(Counter(self.running().values()).values())

    def starts(self, item: str) -> int:
        return sum(line[:2] == ["started", item] for line in self.lines())


@pytest.fixture
def log(wrappers: Wrappers) -> Log:
    return Log(wrappers.folder / "log")


def worker(wrappers: Wrappers, log: Log, *options: str) -> Process:
    command = ("python3", "-c", TASK, log.path)
    return wrappers.work("", *command, options=("--connector", wrappers.group_id, *options))


def test_what_a_worker_keeps_runs_on_while_other_work_moves(wrappers: Wrappers, log: Log) -> None:
    wrappers.put_topic(wrappers.group_id, 3)
    first = worker(wrappers, log)
    first.wait_until(lambda: log.shares() == [4], "all items")

    second = worker(wrappers, log)
    second.wait_until(lambda: log.shares() in ([1, 3], [2, 2]), "a share for each")

    counts = {item: log.starts(item) for item in log.running()}
    moved = [item for item, count in counts.items() if count == 2]
    assert 1 <= len(moved) <= 2
    assert set(counts.values()) == {1, 2}
    assert first.terminate() == 0
    assert second.terminate() == 0
    assert log.running() == {}


@pytest.mark.slow
def test_a_restarted_worker_gets_its_own_work_back(wrappers: Wrappers, log: Log) -> None:
    wrappers.put_topic(wrappers.group_id, 3)
    first = worker(wrappers, log, "--instance-id", "a")
    second = worker(wrappers, log, "--instance-id", "b")
    second.wait_until(lambda: log.shares() in ([1, 3], [2, 2]), "a share for each")
    before = log.running()
    [kept] = {member for member in before.values() if member.startswith("b-")} or {""}
    assert first.terminate() == 0

    again = worker(wrappers, log, "--instance-id", "a")
    again.wait_until(lambda: len(log.running()) == 4, "its own work again")

    after = log.running()
    assert {item for item, member in after.items() if member == kept} == {
        item for item, member in before.items() if member == kept
    }
    assert all(log.starts(item) == 1 for item, member in after.items() if member == kept)
    assert (again.terminate(), second.terminate()) == (0, 0)


@pytest.mark.slow
def test_a_killed_guardian_ends_the_worker_and_all_its_commands(wrappers: Wrappers, log: Log) -> None:
    wrappers.put_topic(wrappers.group_id, 2)
    killed = worker(wrappers, log)
    killed.wait_until(lambda: log.shares() == [3], "all items")

    guardian_of(killed).kill()

    assert killed.wait_for_exit() == 70


@pytest.mark.slow
def test_a_command_waits_until_its_worker_has_read_on(wrappers: Wrappers) -> None:
    wrappers.put_topic(wrappers.group_id, 2)
    ahead, behind = wrappers.folder / "ahead", wrappers.folder / "behind"
    ahead.write_text("7\n")
    behind.write_text("3\n")
    shown = 'echo "runs $ROTA_TASK at $ROTA_CONFIG_OFFSET"; exec sleep 60'

    def reading(file: Path) -> Process:
        options = ("--connector", wrappers.group_id, "--config-offset-file", str(file))
        return wrappers.work("", "sh", "-c", shown, options=options)

    first = reading(ahead)
    first.wait_for_line("runs 0 at 7")
    second = reading(behind)
    first.wait_for_line("it was revoked")
    assert "runs" not in second.output()

    behind.write_text("7\n")

    second.wait_for_line(r"runs -?\d at 7")


@pytest.mark.slow
def test_a_command_learns_its_item(wrappers: Wrappers) -> None:
    wrappers.put_topic(wrappers.group_id, 1)
    shown = 'if [ "$ROTA_TASK" = 0 ]; then exec python3 -c "$1"; fi; exec sleep 60'
    show = "import json, os; print(json.dumps(dict(os.environ)), flush=True)"

    got = environment_of(wrappers.work("", "sh", "-c", shown, "sh", show, options=("-c", wrappers.group_id)))

    assert (got["ROTA_CONNECTOR"], got["ROTA_TASK"], got["ROTA_CONFIG_OFFSET"]) == (wrappers.group_id, "0", "-1")
    assert got["ROTA_ASSIGNMENT"] == f'[{{"topic": "{wrappers.group_id}", "partitions": [0]}}]'
    assert int(got["ROTA_FENCING_TOKEN"]) >= 1


@pytest.mark.slow
def test_options_that_do_not_go_together_are_refused(wrappers: Wrappers) -> None:
    for options, reason in (
        (("--connector", "a", "--topic", "a"), "one of --topic TOPIC, --topic-regex REGEX and --connector NAME"),
        (("--connector", "a", "--strategy", "range"), "do not go with --connector"),
        (("--connector", "a", "--config-offset-file", "missing"), "missing: No such file"),
        (("--topic", "a", "--config-offset-file", "missing"), "--config-offset-file goes with --connector"),
        (("--connector", "a b"), "topic"),
    ):
        refused = wrappers.work("", "true", options=options)

        assert refused.wait_for_exit() == 2
        assert re.search(re.escape(reason), " ".join(refused.output().split())), refused.output()


@pytest.mark.slow
def test_a_connector_that_is_not_registered_ends_the_wait_with_3(wrappers: Wrappers) -> None:
    waiting = wrappers.work("", "true", options=("--connector", wrappers.group_id, "--wait", "1"))

    assert waiting.wait_for_exit() == 3
    assert f"not registered: {wrappers.group_id}" in waiting.output()


def test_an_offset_file_that_breaks_leaves_the_offset(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "offset"
    file.write_text("41\n")
    offset = ConfigOffsetFile(file)
    assert offset() == 41

    file.write_text("4x")

    assert offset() == 41
    assert "the config offset stays 41" in caplog.text
    file.write_text("42")
    assert offset() == 42
