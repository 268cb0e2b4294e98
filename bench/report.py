"""The figures as a table for people, and as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.figures import Figure

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ("bench", "what", "unit", "median", "best", "aim", "floor", "floor's median", "× floor's cost")


def environment(command: str) -> dict[str, Any]:
    """Where and when: without it no figure means anything."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "service") else ""),
        "command": command,
        "python": platform.python_version(),
        "cpu": f"{os.cpu_count()} × {_cpu_model()}",
        "load": [round(each, 2) for each in os.getloadavg()],
    }


def table(figures: Sequence[Figure]) -> str:
    """Markdown."""
    rows = [COLUMNS, ("---", "---", "---", "--:", "--:", "--:", "---", "--:", "--:"), *map(_row, figures)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def as_json(figures: Sequence[Figure], where: dict[str, Any]) -> str:
    """Every sample, so that a reader can judge the noise."""
    lines = [
        {
            "bench": each.bench,
            "name": each.name,
            "unit": each.unit,
            "samples": each.samples,
            "median": each.median,
            "best": each.best,
            "aim": each.aim,
            "floor": each.floor,
            "floor_samples": each.floor_samples,
            "times_the_floor": each.times_the_floor,
        }
        for each in figures
    ]
    return json.dumps({"environment": where, "figures": lines}, indent=1)


def save(folder: Path, figures: Sequence[Figure], where: dict[str, Any]) -> None:
    """`figures.json` and `figures.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "figures.json").write_text(as_json(figures, where))
    (folder / "figures.md").write_text(table(figures) + "\n")


def _row(figure: Figure) -> tuple[str, ...]:
    aim = "" if figure.aim is None else f"{'≥' if figure.is_rate else '≤'} {_number(figure.aim)}"
    missed = " (missed)" if figure.aim_met is False else ""
    return (
        figure.bench,
        figure.name,
        figure.unit,
        _number(figure.median),
        _number(figure.best),
        aim + missed,
        figure.floor,
        _number(figure.floor_median),
        _number(figure.times_the_floor),
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
