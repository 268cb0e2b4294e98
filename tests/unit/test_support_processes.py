"""Processes of the tests are waited for by what they show, and never outlive the run."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import Process, Processes, ProcessFailed
from tests.support.reaper import is_alive

pytestmark = pytest.mark.processes


def test_waiting_fails_at_a_processs_end_with_its_output(processes: Processes) -> None:
    broken = processes.start("sh", "-c", "echo no such option; exit 3")

    with pytest.raises(ProcessFailed, match=r"ended with 3 before line like 'ready'; it printed:\nno such option"):
        broken.wait_for_line("ready", deadline_seconds=60)


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
