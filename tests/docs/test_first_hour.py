"""The first hour of a newcomer, walked from the clone to the rotated token, as docs/tutorials/first-hour.md says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCUMENTED_ADDRESS, DOCUMENTED_STORE, ROOT, RUN, Block, blocks_of, compare, run
from tests.support.curl import put_curl_on_path
from tests.support.newcomer import Newcomer
from tests.support.ports import free_port
from tests.support.processes import Process, Processes

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PAGE = ROOT / "docs" / "tutorials" / "first-hour.md"
ENVIRONMENT = Path(sys.executable).parents[1]


class Walk:
    """A clone, and the server that runs in the other terminal. Packages that are there are not installed again.

    But what the page has not had installed is not to be found.
    """

    def __init__(self, processes: Processes, folder: Path, store: str) -> None:
        self.clone = folder / "rota"
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", self.clone], check=True)
        self._bring_environment()
        self._processes = processes
        self._address = f"127.0.0.1:{free_port()}"
        self._replaced = {DOCUMENTED_ADDRESS: self._address, DOCUMENTED_STORE: store}
        path = f"{put_curl_on_path(folder)}:{ENVIRONMENT / 'bin'}:{os.environ['PATH']}"
        self._newcomer = Newcomer(folder / "installed", ("server", "cli"))
        self._environment = {"PATH": path, "ROTA_HTTP": self._address, "ROTA_URL": f"http://{self._address}"}
        self._environment |= self._newcomer.environment
        # The arguments of the make that runs the tests are not for the newcomer's.
        self._environment |= {"MAKEFLAGS": "", "ARGS": ""}
        self._at_first = {"ROTA_STORE": f"sqlite:///{folder / 'rota.db'}"}
        self._server: Process | None = None

    def _bring_environment(self) -> None:
        """A `.venv` of the clone's own with our programs in it, so new that make has nothing to install into it."""
        (self.clone / ".venv").mkdir()
        (self.clone / ".venv" / "bin").symlink_to(ENVIRONMENT / "bin")
        (self.clone / ".venv" / "base.stamp").touch()
        would = subprocess.run(["make", "-n", "run"], cwd=self.clone, capture_output=True, text=True, check=True).stdout
        assert "install" not in would, "this would install the clone into the environment of the tests"

    def take(self, block: Block) -> str:
        """Do as a block says; returns its output."""
        if block.more == "install":
            (extras,) = re.findall(r"^\.venv/bin/pip install --editable '\.\[([\w,]+)\]'$", block.text, re.MULTILINE)
            self._newcomer.install(extras.split(","))
            return ""
        if block.more == "server":
            self._serve(block)
            return ""
        return run(block, self._replaced, self._environment, self.clone)

    def _serve(self, block: Block) -> None:
        """Stop the server as Ctrl-C does, and start it as the block says."""
        if self._server is not None:
            # make, or the shell, is not the server: it is in the same group, as in a terminal.
            os.killpg(self._server.pid, 2)
            self._server.wait_for_exit()
        text = block.text
        for documented, here in self._replaced.items():
            text = text.replace(documented, here)
        environment = {**self._environment, **self._at_first}
        self._server = self._processes.start("sh", "-c", f"exec {text}", env=environment, cwd=self.clone)
        self._server.wait_for_url(f"http://{self._address}/readyz")


def test_the_first_hour_goes_as_it_is_written(processes: Processes, tmp_path: Path, postgres_dsn: str) -> None:
    walk, last, taken = Walk(processes, tmp_path, postgres_dsn), "", 0
    for block in blocks_of(PAGE):
        if block.is_output:
            compare(block, last)
        elif block.language in RUN:
            last, taken = walk.take(block), taken + 1

    assert taken >= 12
