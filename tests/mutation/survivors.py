"""The mutants that no test finds, each with the reason why that is right: `survivors.txt`.

A block has the function, the lines that the mutant removes and adds, and after `=` the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.mutation.stage import room_of

LISTED = Path(__file__).with_name("survivors.txt")


@dataclass(frozen=True, slots=True)
class Survivor:
    """A mutant that may survive, and why."""

    function: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    why: str

    @property
    def room(self) -> str:
        return room_of(self.function)

    @property
    def key(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        return self.function, self.removed, self.added


def read_survivors(path: Path = LISTED) -> list[Survivor]:
    """All blocks of the file, in order."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
    return [_survivor(block) for block in text.split("\n\n") if block.strip()]


def _survivor(block: str) -> Survivor:
    function, *lines = block.strip().splitlines()
    parts = {sign: tuple(line[2:] for line in lines if line[:1] == sign) for sign in "-+="}
    if len(parts["="]) != 1 or sum(map(len, parts.values())) != len(lines):
        raise ValueError(f"a block of {LISTED.name} needs lines of - and +, and one of =:\n{block}")
    return Survivor(function, parts["-"], parts["+"], parts["="][0])
