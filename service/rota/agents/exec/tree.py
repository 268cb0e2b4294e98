"""A process and all its descendants, including detached ones: functions to find, signal and kill them.

On Linux a process that calls `adopt_orphans` becomes the parent of every orphaned descendant, however it detached
itself (`setsid`, double fork, `nohup`). So its descendants are complete, and the kernel keeps the list. Only processes
that another program starts on request are not included: a container engine, systemd, cron, at.

Elsewhere only the process group is known: a grandchild that leaves it is not found.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from time import monotonic, sleep

IS_LINUX = sys.platform == "linux"

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PAUSE_S = 0.002


def _prctl(option: int, value: int) -> None:
    if _libc is not None and _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# Load it now: no library should be loaded between fork and exec.
_libc = ctypes.CDLL(None, use_errno=True) if IS_LINUX else None


def adopt_orphans() -> None:
    """Become the parent of every orphaned descendant. Linux only; no effect elsewhere."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_memory() -> None:
    """Keep other programs of the same user from reading this process: its memory, and the environment of its start.

    Linux only. `/proc` shows that environment while the process runs. A program that this process executes is readable
    again.
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends. Linux only. A set-user-id program escapes it."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if IS_LINUX and os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)  # The parent ended between fork and this line.


def descendants(root: int) -> list[int]:
    """Return all descendants, parents before their children, including zombies.

    Empty if the kernel has no list. Ended processes are included, because their threads may still run.
    """
    children: dict[int, list[int]] = {}
    for pid, parent in _processes() if IS_LINUX else ():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(root, ()))
    for pid in found:
        found += children.get(pid, ())
    return found


def send(number: int, pids: Iterable[int], group: int | None = None) -> None:
    """Send a signal to a process group, and to each process that is not in it (any more)."""
    if group is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
    for pid in pids:
        if group is None or _group_of(pid) != group:
            # A set-user-id program has changed the process's user, so this process may not end it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def is_any_left(root: int, group: int) -> bool:
    """Return whether `root` has descendants, or the group has processes."""
    return bool(descendants(root)) or _is_there(group)


def kill_descendants(group: int | None, *, for_s: float) -> bool:
    """Send SIGKILL to all descendants of this process repeatedly; return whether all have ended.

    Also reaps them.
    """
    give_up_at = monotonic() + for_s
    while (left := descendants(os.getpid())) or _is_there(group):
        if monotonic() > give_up_at:
            return False
        send(signal.SIGKILL, left, group)
        sleep(_PAUSE_S)
        for pid in left:
            _reap(pid)
    return True


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # It is not (yet) a child, or was already reaped.
        os.waitpid(pid, os.WNOHANG)


def exit_code(status: int) -> int:
    """Return the exit code as a shell does: the code, or 128 plus the signal's number."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _is_there(group: int | None) -> bool:
    """Return whether a group has processes, including unreaped ones, on systems without a list."""
    if group is None or IS_LINUX:
        return False
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _processes() -> Iterable[tuple[int, int]]:
    """Yield the pid and parent of every process."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The name, in parentheses, may contain any character, including parentheses.
                    parent = file.read().rpartition(b") ")[2].split(maxsplit=2)[1]
            except (FileNotFoundError, ProcessLookupError):
                continue
            yield int(name), int(parent)
