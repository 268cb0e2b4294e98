"""What servers of tests have in common: a port that is fixed for life, a directory, and a process that may die."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from tests.support.directories import make_server_directory, remove_server_directory
from tests.support.places import THIS_MACHINE, Place
from tests.support.ports import free_port
from tests.support.processes import Process


class Server(ABC):
    """One server, which runs from the beginning of its block to the end unless a test kills it and starts it again.

    Its port stays the same, so that a URL is good across restarts.
    """

    def __init__(self, name: str, place: Place = THIS_MACHINE) -> None:
        self.port = free_port()
        self._place = place
        self._directory = make_server_directory(name)
        self._process: Process | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    @property
    def process(self) -> Process:
        """Its process, for pausing it or reading its log."""
        assert self._process is not None, "the server was never started"
        return self._process

    @abstractmethod
    def start(self) -> None:
        """Start, and return once it serves."""

    def kill9(self) -> None:
        """SIGKILL it and all that it started, at once."""
        self.process.kill9()

    def remove(self) -> None:
        """Kill it and throw its data away."""
        if self._process is not None:
            self._process.kill9()
        remove_server_directory(self._directory)
