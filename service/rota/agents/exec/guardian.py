"""The guardian of one run: the parent of the command, which ends it at its deadline, even if the wrapper hangs or dies.

It is a separate process, `python -m rota.agents.exec.guardian FD`, and small, so that little can fail: no event
loop, no threads, only the standard library. It ends all processes of the run

- when the last deadline that it received is near, even if the wrapper is paused or starved;
- when the socket to the wrapper ends: the wrapper has ended, even by `kill -9`;
- when the wrapper requests it, and when the command itself ends: its remaining processes must end with the grant.

It forwards signals, as the wrapper does.

If the guardian is killed, the kernel kills the command with it (PR_SET_PDEATHSIG), and the wrapper adopts and kills the
other processes. If the guardian is only paused, the wrapper kills everything later, but still before the deadline.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from rota.agents.exec import tree
from rota.agents.exec.messages import Lines, now_ms
from rota.agents.exec.stopping import COMMAND_ENDED, Step, Stopping, StopTimes

LOST_FD_VARIABLE = "ROTA_LOST_FD"
CANNOT_EXECUTE = 126
NOT_FOUND = 127

_LONGEST_LOOK_MS = 250
"""Timers stop while the machine sleeps, so the clock is read at least at this interval."""
_STRAYS_LOOK_MS = 20
"""Interval of checks for descendants while a run ends: processes that it may have to adopt send no signal."""
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


class Guardian:
    """One run, from its start to the end of its last process."""

    def __init__(self, wrapper: Lines) -> None:
        self._wrapper = wrapper
        self._wakeup, self._wakeup_writer = socket.socketpair()
        for end in (self._wakeup, self._wakeup_writer):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        self._must_end = False
        self._pid = 0
        self._exit_code: int | None = None
        self._stopping: Stopping | None = None
        self._lost_pipe: int | None = None
        self._unsent = b""

    def watch(self) -> None:
        """Start the command when the wrapper requests it, and return when all its processes have ended."""
        while not self._is_over():
            self._wait()
            self._read_signals()
            for message in self._wrapper.read():
                self._handle(message)
            if self._wrapper.is_over:
                self._stop("the wrapper is gone")
            self._reap()
            self._act()
        if self._stopping is not None:
            self._wrapper.send(ended=self._exit_code, reason=self._stopping.reason)

    def _is_over(self) -> bool:
        if self._pid == 0:
            return self._wrapper.is_over or self._must_end
        return self._exit_code is not None and not tree.is_any_left(os.getpid(), self._pid)

    def _wait(self) -> None:
        reads: list[Any] = [self._wakeup] if self._wrapper.is_over else [self._wakeup, self._wrapper]
        writes = [self._lost_pipe] if self._unsent and self._lost_pipe is not None else []
        select.select(reads, writes, (), self._timeout_s())

    def _timeout_s(self) -> float | None:
        if self._stopping is None:
            return None
        if self._stopping.reason:
            return _STRAYS_LOOK_MS / 1000
        return min(max(0, self._stopping.next_at_ms() - now_ms()), _LONGEST_LOOK_MS) / 1000

    def _read_signals(self) -> None:
        try:
            numbers = self._wakeup.recv(4_096)
        except BlockingIOError:
            return
        for number in set(numbers).intersection(_PASSED_ON):
            if self._pid and self._exit_code is None:
                tree.send(number, (), self._pid)
            else:
                self._must_end = True

    def _handle(self, message: dict[str, Any]) -> None:
        match message:
            case {"run": {"command": command, "environment": environment, "document": document}, **rest}:
                self._stopping = Stopping(StopTimes(rest["grace_ms"], rest["margin_ms"]), rest["valid_until_ms"])
                if self._stopping.due(now_ms()) is Step.NOTHING:
                    self._start(command, environment, document)
                else:
                    self._must_end = True  # The deadline has already passed.
            case {"valid_until_ms": valid_until_ms} if self._stopping is not None:
                self._stopping.renewed(valid_until_ms)
            case {"document": document} if self._lost_pipe is not None:
                self._unsent += document.encode()
            case {"signal": number} if self._exit_code is None and self._pid:
                tree.send(number, (), self._pid)
            case {"stop": reason, "grace_ms": grace_ms}:
                self._stop(reason, grace_ms)
            case {"lose": reason} if self._stopping is not None:
                self._stopping.lose(now_ms(), reason)

    def _stop(self, reason: str, grace_ms: int | None = None) -> None:
        if self._stopping is not None:
            self._stopping.stop(now_ms(), reason, grace_ms)

    def _reap(self) -> None:
        """Collect the ends of the command and of adopted processes."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._exit_code = tree.exit_code(status)
                self._stop(COMMAND_ENDED)

    def _act(self) -> None:
        if self._stopping is None:
            return
        step = self._stopping.due(now_ms())
        if self._stopping.reason:
            self._close_lost_pipe()
        elif self._unsent:
            self._send_documents()
        if step is Step.TERM:
            # A paused process does not react until it continues.
            for number in (signal.SIGTERM, signal.SIGCONT):
                tree.send(number, tree.descendants(os.getpid()), self._pid)
        elif step is Step.KILL:
            tree.send(signal.SIGKILL, tree.descendants(os.getpid()), self._pid)

    # --- the command --------------------------------------------------------------------------

    def _start(self, command: list[str], environment: dict[str, str], document: str) -> None:
        """Fork and execute. It reads documents from a pipe, one per line, which ends with the grant."""
        reader, self._lost_pipe = os.pipe()
        os.set_blocking(self._lost_pipe, False)
        self._unsent = document.encode()
        guardian = os.getpid()
        # A signal before the program has started must wait for it, and not run one of our handlers.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._pid = os.fork()
        if self._pid == 0:
            _become(command, environment, reader, guardian, unblocked)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        with contextlib.suppress(PermissionError):  # The child has executed its program, and has already done this.
            os.setpgid(self._pid, self._pid)
        os.close(reader)
        self._wrapper.send(started=self._pid)

    def _send_documents(self) -> None:
        assert self._lost_pipe is not None
        try:
            self._unsent = self._unsent[os.write(self._lost_pipe, self._unsent) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unsent = b""  # The pipe has no reader.

    def _close_lost_pipe(self) -> None:
        self._unsent = b""
        if self._lost_pipe is not None:
            os.close(self._lost_pipe)
            self._lost_pipe = None


def _become(
    command: list[str], environment: dict[str, str], lost_pipe: int, guardian: int, unblocked: Iterable[int]
) -> NoReturn:
    """Become the program after the fork: restore the state that it expects, then execute it without a shell."""
    try:
        os.setpgid(0, 0)
        tree.die_with_parent(guardian)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, *_PASSED_ON):
            # Python ignores the first two, but signals that the user ignores stay ignored.
            if number not in _PASSED_ON or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        os.set_inheritable(lost_pipe, True)
        os.execvpe(command[0], command, {**os.environ, **environment, LOST_FD_VARIABLE: str(lost_pipe)})
    except FileNotFoundError:
        _give_up(command[0], "no such program", NOT_FOUND)
    except OSError as error:
        _give_up(command[0], error.strerror or str(error), CANNOT_EXECUTE)
    except ValueError:  # The name is empty.
        _give_up(command[0] or "''", "no such program", NOT_FOUND)


def _give_up(program: str, why: str, code: int) -> NoReturn:
    os.write(2, os.fsencode(f"rota: {program}: {why}\n"))
    os._exit(code)


def main() -> None:
    """Guard one run; started by `rota.agents.exec.run`."""
    tree.hide_memory()
    tree.adopt_orphans()
    for number in (signal.SIGCHLD, *_PASSED_ON):
        # Ignored signals stay ignored in the command, too: nohup relies on it.
        if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
            # The wake-up socket receives the signal's number, so the handler is empty.
            signal.signal(number, lambda *_: None)
    to_wrapper = socket.socket(fileno=int(sys.argv[1]))
    to_wrapper.set_inheritable(False)  # If the command inherited it, the wrapper would not notice the guardian's end.
    Guardian(Lines(to_wrapper)).watch()


if __name__ == "__main__":
    main()
