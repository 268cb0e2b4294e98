"""Runs for as long as one says, and the table of what came out: `make torture MINUTES=30`.

A pytest plugin, too (`-p tests.support.torture`): it prints the rows that the tests of the mark `torture` have added.
`make torture` has two sessions for one table, and deletes the rows of before when it begins.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from time import monotonic

import pytest

MINUTES = float(os.environ.get("ROTA_MINUTES") or 10)
_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / "build" / "torture"
_ROWS = _FOLDER / "rows.jsonl"


@dataclass(frozen=True, slots=True)
class Row:
    """What one test of the mark `torture` went through."""

    what: str
    minutes: float
    rounds: int
    faults: int
    generations: int
    acknowledged: int
    unanswered: int
    lost: int
    violations: int
    seed: int
    independent: int | None = None
    """How many violations the checks found that share no code with the simulator; None if these checks did not run."""


def rounds(wanted: int | None, *, share: float = 1.0) -> Iterator[int]:
    """Numbers from 0: so many, or, for None, until that share of the minutes has passed since the first."""
    end = monotonic() + 60 * MINUTES * share
    for number in count() if wanted is None else range(wanted):
        if wanted is None and monotonic() >= end:
            return
        yield number


def add_row(row: Row) -> None:
    """For the table at the end. Before anything of it is asserted, so that what failed is in it."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with _ROWS.open("a") as rows:
        rows.write(json.dumps(asdict(row)) + "\n")


def table(rows: list[Row]) -> str:
    """Markdown, with where and when it was."""
    names = [field.name for field in fields(Row)]
    lines = [names, ["---", *["--:"] * (len(names) - 1)]]
    lines += [[_shown(getattr(row, name)) for name in names] for row in rows]
    where = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {_commit()}, Python {platform.python_version()}"
    return "\n".join([where, "", *(f"| {' | '.join(line)} |" for line in lines)])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _is_worker(config) or not _ROWS.exists():
        return
    shown = table([Row(**json.loads(line)) for line in _ROWS.read_text().splitlines()])
    (_FOLDER / "table.md").write_text(shown + "\n")
    terminalreporter.section("torture")
    terminalreporter.write_line(shown)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _shown(value: object) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else "-" if value is None else f"{value}"


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
