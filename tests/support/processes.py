"""Processes of the tests: started, waited for by what they show, killed, and always cleaned up."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from tests.support import reaper
from tests.support.places import THIS_MACHINE, Place

START_DEADLINE_SECONDS = 60.0
_POLL_SECONDS = 0.01
_SHOWN_CHARACTERS = 8_000

# A proxy that the environment names must never see what the tests send to this machine.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ProcessFailed(AssertionError):
    """The process ended, or did not get ready in time; the message ends with its output."""


class Process:
    """One operating system process, with output into a file, and that never outlives the test run.

    `user` drops to that uid and gid, for servers that refuse to run as root. It inherits the open files `descriptors`.
    Every wait has a deadline and looks at what the process shows, and ends at once when the process does.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        output_file: Path,
        *,
        env: Mapping[str, str] | None = None,
        user: int | None = None,
        cwd: Path | None = None,
        place: Place = THIS_MACHINE,
        descriptors: Sequence[int] = (),
    ) -> None:
        entrance = place.entrance(user)
        if entrance:
            user = None  # Only the user that starts us may pass there, and becomes that user then.
        self.command = [*entrance, *(str(part) for part in command)]
        self.output_file = output_file
        self._read_from = output_file.stat().st_size if output_file.exists() else 0
        with output_file.open("ab") as output:
            self._popen = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(os.environ if env is None else env),
                cwd=cwd,
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
                pass_fds=descriptors,
            )
        reaper.remember("process", self.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill9()

    @property
    def pid(self) -> int:
        """Its process id, which is also the id of its process group and session."""
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit code (minus the signal's number if a signal ended it), None while it runs."""
        return self._popen.poll()

    @property
    def running(self) -> bool:
        """Whether it has not ended yet; a paused process runs."""
        return self.exit_code is None

    def output(self) -> str:
        """Everything it has printed so far, standard output and error together."""
        with self.output_file.open("rb") as output:
            output.seek(self._read_from)
            return output.read().decode(errors="replace")

    def wait_until(
        self, ready: Callable[[], bool], what: str, deadline_seconds: float = START_DEADLINE_SECONDS
    ) -> None:
        """Return once `ready()` is true; `ProcessFailed` if the process ends or the deadline passes before."""
        give_up_at = monotonic() + deadline_seconds
        while not ready():
            if self._ends_within(_POLL_SECONDS):
                raise self._failed(f"ended with {self.exit_code} before {what}")
            if monotonic() > give_up_at:
                raise self._failed(f"no {what} within {deadline_seconds:g} s")

    def wait_for_url(self, url: str, deadline_seconds: float = START_DEADLINE_SECONDS) -> None:
        """Return once a GET of `url` is answered with a 2xx."""
        self.wait_until(lambda: _answers(url), f"answer from {url}", deadline_seconds)

    def wait_for_line(self, pattern: str, deadline_seconds: float = START_DEADLINE_SECONDS) -> re.Match[str]:
        """Return the first match of the regular expression in the output, `^` and `$` meaning lines."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            found.extend(re.finditer(pattern, self.output(), re.MULTILINE))
            return bool(found)

        self.wait_until(look, f"line like {pattern!r}", deadline_seconds)
        return found[0]

    def wait_for_exit(self, deadline_seconds: float = START_DEADLINE_SECONDS) -> int:
        """Return its exit code once it has ended by itself."""
        if not self._ends_within(deadline_seconds):
            raise self._failed(f"still running after {deadline_seconds:g} s")
        return self._popen.returncode

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone, not to its children."""
        self._popen.send_signal(number)

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing until `resume`."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.send(signal.SIGCONT)

    def terminate(self, deadline_seconds: float = START_DEADLINE_SECONDS) -> int:
        """SIGTERM, and wait for the end; returns the exit code."""
        self.send(signal.SIGTERM)
        exit_code = self.wait_for_exit(deadline_seconds)
        reaper.forget("process", self.pid)
        return exit_code

    def kill9(self) -> None:
        """SIGKILL for it and its children; returns when none of them is left. Nothing happens if it has ended."""
        if self.running:
            reaper.kill_tree(self.pid)
            self._popen.wait(timeout=START_DEADLINE_SECONDS)
        reaper.forget("process", self.pid)

    def _ends_within(self, seconds: float) -> bool:
        try:
            self._popen.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _failed(self, reason: str) -> ProcessFailed:
        command = " ".join(self.command)
        return ProcessFailed(f"{command}\n  {reason}; it printed:\n{self.output()[-_SHOWN_CHARACTERS:]}")


class Processes:
    """The processes of one test. `pytest` shows their output when the test fails, and ends them after it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[Process] = []

    def start(
        self,
        *command: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        place: Place = THIS_MACHINE,
    ) -> Process:
        """Start a command; `env` is added to the environment of the tests."""
        output_file = self._directory / f"{len(self._started)}-{Path(command[0]).name}.log"
        process = Process(command, output_file, env={**os.environ, **(env or {})}, cwd=cwd, place=place)
        self._started.append(process)
        return process

    def rota(
        self,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        place: Place = THIS_MACHINE,
    ) -> Process:
        """Start `rota ARGUMENTS` of the environment that runs the tests."""
        return self.start(rota_command(), *arguments, env=env, cwd=cwd, place=place)

    def outputs(self) -> list[tuple[str, str]]:
        """Command and end of the output of each process, for the report of a failed test."""
        return [(" ".join(one.command), one.output()[-_SHOWN_CHARACTERS:]) for one in self._started]

    def close(self) -> None:
        """Kill what still runs."""
        for process in reversed(self._started):
            process.kill9()


def rota_command() -> Path:
    """The `rota` program of the virtual environment in which the tests run."""
    return Path(sys.executable).with_name("rota")


def _answers(url: str) -> bool:
    try:
        with _opener.open(url, timeout=1):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False
