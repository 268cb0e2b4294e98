"""Ends what a test run leaves behind, also when the run itself was killed.

The reaper is a process of its own that reads from a pipe what the run has started. When the run is gone, however it
went, the pipe ends, and the reaper kills the processes and removes the directories that were not crossed off.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import shutil
import subprocess
import sys
from collections.abc import Iterable
from time import monotonic, sleep
from typing import IO

import psutil

_KILL_DEADLINE_SECONDS = 10.0
_POLL_SECONDS = 0.002


def kill_tree(pid: int) -> None:
    """SIGKILL for a process, then for its children, and wait until none of them runs."""
    try:
        root = psutil.Process(pid)
        doomed = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in doomed:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    give_up_at = monotonic() + _KILL_DEADLINE_SECONDS
    while any(is_alive(process.pid) for process in doomed):
        assert monotonic() < give_up_at, f"killed, but still there: {doomed}"
        sleep(_POLL_SECONDS)


def is_alive(pid: int) -> bool:
    """Whether a process runs or is paused. One that has ended is not, though its parent has not taken notice yet."""
    # The new parent of an orphan may take seconds to notice; that is nothing to wait for.
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def remember(what: str, name: str | int) -> None:
    """Register a `process` (its pid) or a `directory` (its path) that must not outlive this run."""
    print("+", what, name, file=_pipe(), flush=True)


def forget(what: str, name: str | int) -> None:
    """Remove an entry that is ended or removed already."""
    print("-", what, name, file=_pipe(), flush=True)


@functools.cache
def _pipe() -> IO[str]:
    # A session of its own keeps it from the Ctrl-C that is meant for the run.
    reaper = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        start_new_session=True,
    )
    # It must outlive us, so no process waits for it; marking it as ended keeps Popen from warning about that.
    reaper.returncode = 0
    assert reaper.stdin is not None
    atexit.register(reaper.stdin.close)
    return reaper.stdin


def _left_over(lines: Iterable[str]) -> list[tuple[str, str]]:
    """The entries that were registered and not removed, processes before the directories that they write to."""
    left: dict[tuple[str, str], None] = {}
    for line in lines:
        sign, what, name = line.rstrip("\n").split(" ", 2)
        if sign == "+":
            left[what, name] = None
        else:
            left.pop((what, name), None)
    return sorted(left, reverse=True)


def _reap(lines: Iterable[str]) -> None:
    for what, name in _left_over(lines):
        if what == "process":
            kill_tree(int(name))
        else:
            shutil.rmtree(name, ignore_errors=True)


if __name__ == "__main__":
    _reap(sys.stdin)
