"""Runs a program at each change, one at a time, with the change in its environment and as JSON on its input."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Sequence

from rota.agents.sidecar.changes import Change
from rota.agents.sidecar.hooks.dispatch import HookFailed
from rota.agents.sidecar.status import environment


class CommandHook:
    """A program; its last argument is the kind of the change. A failed run is not repeated: its effect might happen
    twice.
    """

    name = "command"

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        self._command = command
        self._timeout_s = timeout_s

    async def deliver(self, change: Change) -> None:
        process = await self._start(change)
        try:
            async with asyncio.timeout(self._timeout_s):
                await process.communicate(json.dumps(change.document()).encode())
        except TimeoutError:
            raise HookFailed(f"still ran after {self._timeout_s:g} s and was killed", again=False) from None
        finally:
            # Also kill its remaining processes: the next change may contradict them.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if process.returncode != 0:
            raise HookFailed(f"ended with {process.returncode}", again=False)

    async def _start(self, change: Change) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *(*self._command, change.kind),
                stdin=asyncio.subprocess.PIPE,
                env={**os.environ, **environment(change.status, change.kind)},
                start_new_session=True,
            )
        except OSError as error:
            raise HookFailed(f"{self._command[0]}: {error.strerror or error}", again=False) from error
