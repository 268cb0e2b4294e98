"""A server with access rules and an administrator's token: for its pages in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.processes.server import Server
from tests.support.processes import Process, Processes


class Keeper:
    """The server, and an administrator's token for it."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        (folder / "access.toml").touch()
        self._processes = processes
        self._store = f"sqlite:///{folder / 'rota.db'}"
        self.server = Server(processes, self._store, "--access-file", str(folder / "access.toml"))
        self.token = ""

    @property
    def url(self) -> str:
        return self.server.url

    def open(self) -> None:
        """Start it, and create the token."""
        self.server.start_and_wait()
        options = ("--allow", "admin", "--namespace", "*", "--store", self._store)
        making: Process = self._processes.rota("token", "create", "alice", *options)
        assert making.wait_for_exit() == 0, making.output()
        self.token = next(line for line in making.output().splitlines() if line.startswith("rota_"))


def keeper_in(folder: Path) -> Iterator[Keeper]:
    """A keeper's server for the length of the block."""
    processes = Processes(folder)
    try:
        yield Keeper(processes, folder)
    finally:
        processes.close()
