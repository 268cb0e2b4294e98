"""Play the mutants of a room against its quick tests: `python -m tests.mutation [ROOM ...] [--only PATTERN]`.

Played are the mutants that no test has found yet and those of functions that have changed since; all of them where a
file of tests is new. Which tests enter a function is known from before: remove `build/mutants` where a test of the same
name has changed. The run fails where fewer than 90 % of a room's mutants are found, or one survives that
`survivors.txt` does not list.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.mutation.measured import MEASURED, percent_found
from tests.mutation.outcomes import SURVIVED, TESTS, TYPES, UNCHECKED, Mutant, forget_survivors, read_outcomes, tally
from tests.mutation.stage import ROOMS, Room, build_stage
from tests.mutation.survivors import read_survivors
from tests.support.sources import ROOT

_MEMORY = Path("/dev/shm")

LEAST_FOUND = 90
"""In percent, of the mutants that the type checker accepts and that change more than a text."""


def main() -> int:
    """Run the rooms that were asked for; returns 1 where one of them fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="*", help="all, unless named")
    parser.add_argument(
        "--only", nargs="*", default=[], help="play only mutants of these names: 'rota.core.group.join.*'"
    )
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    rooms = [ROOMS[name] for name in options.rooms or ROOMS]
    return max(_play(room, options.only, options.jobs) for room in rooms)


def _play(room: Room, only: list[str], jobs: int) -> int:
    command = [str(Path(sys.executable).with_name("mutmut")), "run", "--max-children", str(jobs)]
    if not only:
        forget_survivors(room)
    # Python looks for the plugin here; and stores of tests need no disk if the machine has a file system in memory.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **({"TMPDIR": str(_MEMORY)} if _MEMORY.is_dir() else {})}
    ran = subprocess.run([*command, *only], cwd=build_stage(room), env=environment, check=False)
    if ran.returncode:
        return ran.returncode
    mutants = read_outcomes(room)
    counts = tally(mutants)
    unlisted = _unlisted(room, mutants)
    for mutant in unlisted:
        print(f"{mutant}\n")
    found = percent_found(counts)
    print(f"{room.name}: {_line(counts)}; {found:.1f} % found, {len(unlisted)} survivors are not listed")
    if not counts[UNCHECKED]:
        _note(room, counts)
    return int(bool(unlisted) or found < LEAST_FOUND)


def _unlisted(room: Room, mutants: list[Mutant]) -> list[Mutant]:
    listed = {survivor.key for survivor in read_survivors() if survivor.room == room.name}
    survivors = [mutant for mutant in mutants if mutant.found_by == SURVIVED and not mutant.is_of_text]
    return [each for each in survivors if (each.function, each.removed, each.added) not in listed]


def _line(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[name]} {name}" for name in (TYPES, TESTS, SURVIVED, "text", UNCHECKED))


def _note(room: Room, counts: Counter[str]) -> None:
    """Record the counts in measured.json, which `table.py` shows."""
    measured = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    measured[room.name] = {name: counts[name] for name in (TYPES, TESTS, SURVIVED, "text")}
    MEASURED.write_text(json.dumps(dict(sorted(measured.items())), indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
