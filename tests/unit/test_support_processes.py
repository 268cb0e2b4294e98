"""Processes of the tests are waited for by what they show, and never outlive the run."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.processes import Process, Processes, ProcessFailed
from tests.support.reaper import is_alive

pytestmark = pytest.mark.processes


def test_waiting_for_a_url_ends_when_it_answers(processes: Processes) -> None:
    port = free_port()
    server = processes.start(sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port))

    server.wait_for_url(f"http://127.0.0.1:{port}/")

    assert server.running
    assert server.terminate() == -signal.SIGTERM


def test_waiting_for_a_line_returns_what_it_says(processes: Processes) -> None:
    speaker = processes.start("sh", "-c", "echo starting; echo port=4711; exec sleep 600")

    line = speaker.wait_for_line(r"^port=(\d+)$")

    assert line[1] == "4711"
    assert speaker.output() == "starting\nport=4711\n"


def test_waiting_fails_at_a_processs_end_with_its_output(processes: Processes) -> None:
    broken = processes.start("sh", "-c", "echo no such option; exit 3")

    with pytest.raises(ProcessFailed, match=r"ended with 3 before line like 'ready'; it printed:\nno such option"):
        broken.wait_for_line("ready", deadline_seconds=60)


def test_waiting_fails_at_the_deadline(processes: Processes) -> None:
    silent = processes.start("sleep", "600")

    with pytest.raises(ProcessFailed, match=r"within 0\.05 s"):
        silent.wait_for_line("ready", deadline_seconds=0.05)


def test_kill9_ends_the_children_too(processes: Processes) -> None:
    parent = processes.start("sh", "-c", "sleep 600 & echo $!; wait")
    child = int(parent.wait_for_line(r"^(\d+)$")[1])

    parent.kill9()

    assert parent.exit_code == -signal.SIGKILL
    assert not is_alive(child)


def test_a_paused_process_stays_and_can_be_killed(processes: Processes) -> None:
    paused = processes.start("sleep", "600")

    paused.pause()

    assert paused.running
    paused.kill9()
    assert paused.exit_code == -signal.SIGKILL


def test_environment_and_arguments_reach_the_process(processes: Processes) -> None:
    shell = processes.start("sh", "-c", 'echo "$GREETING $1"', "sh", "world", env={"GREETING": "hello"})

    assert shell.wait_for_exit() == 0
    assert shell.output() == "hello world\n"


@pytest.fixture
def killed_run(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A process and a directory left behind by a test run that was killed with SIGKILL."""
    script = """
import signal
from pathlib import Path
from tests.support.directories import make_server_directory
from tests.support.processes import Process
directory = make_server_directory("left-behind")
print(Process(["sleep", "600"], directory / "log").pid, directory, flush=True)
signal.pause()
"""
    root = Path(__file__).parents[2]
    with Process([sys.executable, "-c", script], tmp_path / "run.log", cwd=root) as run:
        line = run.wait_for_line(r"^(\d+) (.*)$")
        run.send(signal.SIGKILL)
        run.wait_for_exit()
        yield int(line[1]), Path(line[2])


def test_what_a_killed_run_leaves_behind_is_cleaned_up(killed_run: tuple[int, Path], processes: Processes) -> None:
    pid, directory = killed_run
    watch = processes.start("sleep", "600")  # only lends its wait and deadline

    watch.wait_until(lambda: not is_alive(pid) and not directory.exists(), "end of what was left behind")

    assert watch.running
