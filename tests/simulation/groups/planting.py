"""How a defect is planted again: a function that patches the product, for as long as a `with` block is open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.simulation.registry import Patch, Patching, Planted, while_planted


def patch_text(patch: Patch, path: Path, old: str, new: str) -> None:
    """Have every reader of the file `path` read `new` in the place of `old`."""
    former = Path.read_text

    def read_text(self: Path, *arguments: Any, **named: Any) -> str:
        text = former(self, *arguments, **named)
        return text.replace(old, new) if self.resolve() == path else text

    assert old in path.read_text(), f"{path.name} has no {old!r} any more"
    patch(Path, "read_text", read_text)


@dataclass(frozen=True, slots=True)
class Named:
    """A defect that one named test finds."""

    finding: str
    """Ids of `findings.py`, with commas between them."""
    test: str
    """The node id of the test that fails while the defect is planted."""
    fails_with: str
    """The type of the exception by which it fails."""
    planted: Planted
    in_processes: bool
    """The test starts the product as processes: the defect is planted in these."""

    @property
    def findings(self) -> frozenset[str]:
        return frozenset(self.finding.split(", "))


class Plants:
    """Planted defects of one subject, each by the name of the function that patches."""

    def __init__(self) -> None:
        self.rows: dict[str, Named] = {}

    def named(
        self, finding: str, test: str, *, fails_with: str = "AssertionError", in_processes: bool = False
    ) -> Callable[[Patching], Patching]:
        """Register a function that gets a way to patch; see `Named` for the rest."""

        def register(patching: Patching) -> Patching:
            name = patching.__name__
            assert name not in self.rows, f"two plants are called {name}"
            self.rows[name] = Named(finding, test, fails_with, while_planted(patching), in_processes)
            return patching

        return register
