"""The result of a race: as figures, as JSON, as a table of ratios, and as a picture."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from bench.figures import Figure

OURS = "Rota"
_ROW_PX, _LABEL_PX, _WIDTH_PX, _TITLE_PX = 16, 110, 640, 26
_SHOWN = ("CPU of 1,000", "one more", "the leader", "memory")
"""What the picture shows: rates and delays under load say as much about the client."""


@dataclass
class Quantity:
    """One line: the samples of each system, or why it has none."""

    name: str
    unit: str
    samples: dict[str, list[float]] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)

    def median_of(self, system: str) -> float | None:
        values = self.samples.get(system)
        return median(values) if values and system not in self.lacking else None

    def ours(self) -> float | None:
        """The better of Rota's."""
        values = [
            value
            for system in self.samples
            if system.startswith(OURS) and (value := self.median_of(system)) is not None
        ]
        best = max if self.unit.endswith("/s") else min
        return best(values) if values else None

    def times_ours(self, system: str) -> float | None:
        """How many times Rota's the cost of a system is: above 1, Rota is ahead."""
        theirs, ours = self.median_of(system), self.ours()
        if theirs is None or ours is None or theirs <= 0 or ours <= 0:
            return None
        return ours / theirs if self.unit.endswith("/s") else theirs / ours


@dataclass
class Result:
    """All lines, in the order in which they were measured."""

    environment: dict[str, Any]
    systems: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    quantities: list[Quantity] = field(default_factory=list)

    def add(self, names: Sequence[tuple[str, str]], system: str, values: Sequence[float]) -> None:
        for (name, unit), value in zip(names, values, strict=True):
            self._quantity(name, unit).samples.setdefault(system, []).append(value)

    def lack(self, names: Sequence[tuple[str, str]], system: str, why: str) -> None:
        for name, unit in names:
            self._quantity(name, unit).lacking[system] = why

    def figures(self) -> list[Figure]:
        return [
            Figure("race", f"{quantity.name}, {system}", quantity.unit, tuple(samples))
            for quantity in self.quantities
            for system, samples in quantity.samples.items()
            if system not in quantity.lacking
        ]

    def _quantity(self, name: str, unit: str) -> Quantity:
        for quantity in self.quantities:
            if quantity.name == name:
                return quantity
        self.quantities.append(Quantity(name, unit))
        return self.quantities[-1]


def save(folder: Path, name: str, result: Result) -> None:
    """Three files of that name: `.json`, `.md` and `.svg`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(asdict(result), indent=1))
    (folder / f"{name}.md").write_text(table(result))
    (folder / f"{name}.svg").write_text(picture(result))


def load(file: Path) -> Result:
    """A result that was saved."""
    document = json.loads(file.read_text())
    quantities = [Quantity(**each) for each in document.pop("quantities")]
    return Result(**document, quantities=quantities)


def table(result: Result) -> str:
    """Markdown: each system's median and, behind it, how many times Rota's that is; then all that is missing.

    Rows that Rota alone has are figures, and no race.
    """
    head = ["what", "unit", *result.systems]
    lines = [head, ["---", "---", *("--:" for _ in result.systems)]]
    lines += [[each.name, each.unit, *(_cell(each, system) for system in result.systems)] for each in _raced(result)]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    missing = "".join(f"- {line}\n" for line in _missing(result))
    return f"{rows}\n\n{missing}"


def _raced(result: Result) -> list[Quantity]:
    peers = [system for system in result.systems if not system.startswith(OURS)]
    return [each for each in result.quantities if any(each.median_of(peer) is not None for peer in peers)]


def _cell(quantity: Quantity, system: str) -> str:
    value = quantity.median_of(system)
    if value is None:
        return "–"
    shown = number(value)
    ratio = quantity.times_ours(system)
    return shown if ratio is None or system.startswith(OURS) else f"{shown} (× {number(ratio)})"


def _missing(result: Result) -> Iterable[str]:
    for system, why in result.skipped.items():
        yield f"{system} was skipped: {why}."
    reasons: dict[tuple[str, str], list[str]] = {}
    raced = _raced(result)
    for quantity in result.quantities:
        for system, why in quantity.lacking.items():
            if quantity not in raced and not why.startswith("failed"):
                continue
            reasons.setdefault((system, why), []).append(quantity.name.partition(":")[0])
    for (system, why), names in reasons.items():
        yield f"{system} has no figure of *{'*, *'.join(dict.fromkeys(names))}*: {why}."


def picture(result: Result) -> str:
    """Bars for each quantity that is compared, on a scale of its own; Rota's are dark."""
    parts: list[str] = []
    top = 0
    for quantity in result.quantities:
        values = {system: value for system in result.systems if (value := quantity.median_of(system)) is not None}
        if not values or not any(shown in quantity.name for shown in _SHOWN):
            continue
        parts.append(f'<text x="0" y="{top + 17}" class="t">{escape(quantity.name)} ({escape(quantity.unit)})</text>')
        top += _TITLE_PX
        longest = max(values.values())
        for system, value in values.items():
            width = max(1.0, value / longest * (_WIDTH_PX - _LABEL_PX - 70))
            kind = "ours" if system.startswith(OURS) else "peer"
            parts.append(
                f'<text x="{_LABEL_PX - 6}" y="{top + 12}" text-anchor="end">{escape(system)}</text>'
                f'<rect x="{_LABEL_PX}" y="{top + 2}" width="{width:.1f}" height="{_ROW_PX - 4}" class="{kind}"/>'
                f'<text x="{_LABEL_PX + width + 5:.1f}" y="{top + 12}">{number(value)}</text>'
            )
            top += _ROW_PX
        top += 6
    style = (
        "text{font:11px sans-serif;fill:#333}.t{font-weight:bold}.ours{fill:#1f5fa8}.peer{fill:#b9c4d0}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.ours{fill:#6aa9f0}.peer{fill:#5c6670}}"
    )
    size = f'viewBox="0 0 {_WIDTH_PX} {max(1, top)}" width="{_WIDTH_PX}" height="{max(1, top)}"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><style>{style}</style>\n{body}\n</svg>\n'


def number(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
