"""Where a process of the tests runs: on this machine as it is, or on a network of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Place(Protocol):
    """What a server has to know of where it runs."""

    @property
    def address(self) -> str:
        """Where servers listen there."""
        ...

    def entrance(self, user: int | None) -> Sequence[str]:
        """What stands before a command that is to run there, as that user. Empty where nothing has to."""
        ...


@dataclass(frozen=True, slots=True)
class ThisMachine:
    """No other place than that of the tests."""

    address: str = "127.0.0.1"

    def entrance(self, _user: int | None) -> Sequence[str]:
        return ()


THIS_MACHINE = ThisMachine()
