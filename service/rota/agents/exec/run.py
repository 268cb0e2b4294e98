"""One run of the command in its wrapper: its start, renewals, signals and end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rota.agents.exec import tree
from rota.agents.exec.messages import Lines, from_loop_ms, now_ms
from rota.agents.exec.stopping import COMMAND_ENDED, TERMINATED, StopTimes
from rota.protocol.fencing_token import generation_of

_LONGEST_LOOK_S = 0.25
_PATIENCE_S = 1.0
"""The extra time for a guardian to end a run before it counts as hanging."""
_SHORT_PATIENCE_MS = 50
"""The extra time if the grant is already lost."""
_LONGEST_VARIABLE = 100_000
"""Linux accepts no environment variable above 128 KiB; a longer value is only sent on the pipe."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The grant of a run: in the environment, and complete as a line of JSON on the pipe.

    `variables` and `fields` are those of the kind of grant, in addition to the common ones.
    """

    group_id: str
    fencing_token: int
    member_id: str
    variables: Mapping[str, str]
    fields: Mapping[str, Any]

    @property
    def generation_id(self) -> int:
        return generation_of(self.fencing_token)

    @property
    def environment(self) -> dict[str, str]:
        each = {
            **self.variables,
            "ROTA_GROUP": self.group_id,
            "ROTA_FENCING_TOKEN": str(self.fencing_token),
            "ROTA_GENERATION": str(self.generation_id),
            "ROTA_MEMBER_ID": self.member_id,
        }
        return {name: value for name, value in each.items() if len(value) < _LONGEST_VARIABLE}

    @property
    def line(self) -> str:
        each = {"group": self.group_id, "fencing_token": self.fencing_token, "member_id": self.member_id, **self.fields}
        return json.dumps(each, separators=(",", ":")) + "\n"


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a run and all its processes. `exit_code` is as in a shell; None if the command was never started.

    `stopped` is the reason if this process ended it; empty if the command ended by itself or after a signal.
    """

    exit_code: int | None
    stopped: str = ""


@contextlib.asynccontextmanager
async def beside(coroutine: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run the coroutine during the block. Its exception is raised after the block.

    Awaiting a cancelled task looks like the caller's own cancellation, so the task is gathered.
    """
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            task.result()


class GuardianLost(Exception):
    """The guardian was killed, and with it all processes that it ran."""


class Run:
    """A guardian that waits for a command to run. Use as a context manager: at its end all processes of the run have
    ended.

    The process that uses it must have adopted orphans (`tree.adopt_orphans`) and have no other children, because it
    kills all its descendants if the guardian cannot.
    """

    def __init__(self, times: StopTimes) -> None:
        self._times = times
        ours, theirs = socket.socketpair()
        with theirs:
            self._guardian = subprocess.Popen(
                [sys.executable, "-P", "-m", "rota.agents.exec.guardian", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                # The wrapper receives keys of the terminal, and forwards their signals.
                start_new_session=True,
            )
        self._lines = Lines(ours)
        self._pid: int | None = None
        self._valid_until_ms: int | None = None
        self._token = -1
        self._late_at_ms: int | None = None
        self._lost = ""
        self._news = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
        try:
            self._guardian.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._kill_all()

    def start(self, command: Sequence[str], grant: Grant, valid_until: float) -> None:
        """Run the command until `valid_until`, in seconds of the event loop's clock, unless that is renewed."""
        self._valid_until_ms, self._token = from_loop_ms(valid_until), grant.fencing_token
        self._lines.send(
            run={"command": list(command), "environment": grant.environment, "document": grant.line},
            grace_ms=self._times.grace_ms,
            margin_ms=self._times.margin_ms,
            valid_until_ms=self._valid_until_ms,
        )

    def renew(self, valid_until: float | None) -> None:
        """Extend the deadline of the run; None does not change it."""
        if valid_until is None:
            return
        valid_until_ms = from_loop_ms(valid_until)
        # The two clocks are read one after the other: a difference of 1 ms is no renewal.
        if self._valid_until_ms is None or abs(valid_until_ms - self._valid_until_ms) > 2:
            self._valid_until_ms = valid_until_ms
            self._lines.send(valid_until_ms=valid_until_ms)

    def update(self, grant: Grant) -> None:
        """Send a grant with a higher token to the command, which reads it from its pipe and continues."""
        if grant.fencing_token > self._token:
            self._token = grant.fencing_token
            self._lines.send(document=grant.line)

    def forward(self, number: int) -> None:
        """Forward a signal to the command's process group."""
        self._lines.send(signal=number)

    def stop(self, reason: str, grace_s: float | None = None) -> None:
        """Send TERM, and KILL after the grace, or at the end of the grant if that is sooner."""
        grace_ms = self._times.grace_ms if grace_s is None else int(grace_s * 1000)
        if self._late_at_ms is None:
            self._late_at_ms = now_ms() + grace_ms + int(_PATIENCE_S * 1000)
            self._lines.send(stop=reason, grace_ms=grace_ms)
            self._news.set()

    def lose(self, reason: str) -> None:
        """Send KILL without a grace: another member may already have the grant."""
        if not self._lost:
            self._lost = reason
            self._late_at_ms = now_ms() + _SHORT_PATIENCE_MS
            self._lines.send(lose=reason)
            self._news.set()

    async def wait(self) -> Ended:
        """Return when all processes of the run have ended.

        Raises:
            GuardianLost: The guardian was killed; all processes of the run have ended, too.
        """
        loop = asyncio.get_running_loop()
        loop.add_reader(self._lines.fileno(), self._news.set)
        try:
            while (ended := self._read_end()) is None:
                await self._wait_for_news()
            return ended
        finally:
            loop.remove_reader(self._lines.fileno())

    async def _wait_for_news(self) -> None:
        # Timers stop while the machine sleeps, so the clock is read periodically.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(self._late_in_s(), _LONGEST_LOOK_S)):
                await self._news.wait()

    def _read_end(self) -> Ended | None:
        """Return the end of the run, if it has ended or this process must end it."""
        self._news.clear()
        for message in self._lines.read():
            match message:
                case {"started": pid}:
                    self._pid = pid
                case {"ended": code, "reason": reason}:
                    return Ended(code, "" if reason in (COMMAND_ENDED, TERMINATED) else reason)
        if self._lines.is_over:
            self._kill_all()
            raise GuardianLost("the guardian was killed, and with it the command")
        if self._late_in_s() <= 0:
            self._kill_all()
            return Ended(128 + signal.SIGKILL, self._lost or "the supervising process did not react in time")
        return None

    def _late_in_s(self) -> float:
        """Return the time that the guardian still has before this process ends the run."""
        late_at_ms = [] if self._late_at_ms is None else [self._late_at_ms]
        if self._valid_until_ms is not None:
            late_at_ms.append(self._times.backstop_at_ms(self._valid_until_ms))
        return (min(late_at_ms) - now_ms()) / 1000 if late_at_ms else _LONGEST_LOOK_S

    def _kill_all(self) -> None:
        """Kill the run instead of the guardian. When the guardian is dead, its command dies and its orphans are
        adopted.
        """
        self._guardian.kill()
        tree.kill_descendants(self._pid, for_s=_PATIENCE_S)
        self._guardian.poll()
