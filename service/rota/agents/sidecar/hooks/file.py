"""A file with the share and its expiry, replaced as a whole, so that readers never see half of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rota.agents.sidecar.status import Status

_log = logging.getLogger(__name__)


class StatusFile:
    """A file that is written at each change, and long before it expires. After `expires_at_ms` the status
    is unknown.
    """

    def __init__(self, path: Path, status: Callable[[], Status], every_s: float) -> None:
        self._path = path
        self._status = status
        self._every_s = every_s
        self._changed = asyncio.Event()

    def changed(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Write the file until cancelled. It is never removed: it expires by itself, also when the process
        is killed.
        """
        while True:
            self._changed.clear()
            self.write()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._changed.wait()

    def write(self) -> None:
        """Write the current status. A failed write is logged: the old status expires."""
        status = self._status()
        at_ms = time.time_ns() // 1_000_000
        document = {**status.document(), "at_ms": at_ms, "expires_at_ms": at_ms + status.expires_in_ms}
        try:
            self._replace(json.dumps(document) + "\n")
        except OSError as error:
            _log.error("%s cannot be written: %s", self._path, error)

    def _replace(self, text: str) -> None:
        descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        try:
            with os.fdopen(descriptor, "w") as file:
                os.fchmod(descriptor, 0o644)
                file.write(text)
            os.replace(name, self._path)
        except OSError:
            os.unlink(name)
            raise
