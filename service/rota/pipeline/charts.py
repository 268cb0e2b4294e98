"""Plots as SVG, by hand: a report is one file that opens anywhere, without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = tuple(f"var(--c{number})" for number in range(10))
"""The page defines them, for light and for dark."""

_WIDTH, _HEIGHT = 920, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 34


@dataclass(frozen=True, slots=True)
class Bars:
    """Stacked bars: `series` maps a name to one number for each label. `unit` is what the numbers count."""

    labels: Sequence[str]
    series: dict[str, Sequence[float]]
    unit: str


def stacked_bars(bars: Bars, title: str) -> str:
    """A plot over time, with a legend; `title` is its name for those that do not see it."""
    totals: list[float] = [sum(values[i] for values in bars.series.values()) for i in range(len(bars.labels))]
    top = nice_ceiling(max(totals, default=0))
    inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    step = inner_width / max(1, len(bars.labels))
    parts: list[str] = [_axis(top, bars.unit, inner_height)]
    for place, label in enumerate(bars.labels):
        base: float = _TOP + inner_height
        for number, (name, values) in enumerate(bars.series.items()):
            height = inner_height * values[place] / top
            base -= height
            if height:
                tip = f"<title>{escape(label)}: {values[place]:,.0f} {escape(name)}</title>"
                parts.append(
                    f'<rect x="{_LEFT + place * step + 0.5:.1f}" y="{base:.1f}" width="{max(1, step - 1):.1f}" '
                    f'height="{height:.1f}" style="fill:{COLOURS[number % len(COLOURS)]}">{tip}</rect>'
                )
    parts += _time_labels(bars.labels, step)
    peak = max(range(len(totals)), key=totals.__getitem__, default=0)
    most = f", at most {totals[peak]:,.0f} at {bars.labels[peak]} UTC" if totals else ""
    return _svg(parts, _HEIGHT, f"{title}: {bars.unit}{most}") + _legend(list(bars.series))


def level_bars(rows: Sequence[tuple[str, float, float | None]], unit: str, mark: str, title: str) -> str:
    """One bar a row, with a mark at the second number where there is one."""
    top = nice_ceiling(max((max(value, least or 0) for _, value, least in rows), default=0))
    height = 26 * len(rows) + 24
    width = _WIDTH - 230
    parts = []
    for place, (name, value, least) in enumerate(rows):
        y = 4 + 26 * place
        parts.append(f'<text x="140" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
        parts.append(
            f'<rect x="150" y="{y + 2}" width="{width * value / top:.1f}" height="16" style="fill:{COLOURS[0]}"/>'
        )
        parts.append(f'<text x="{156 + width * value / top:.1f}" y="{y + 14}">{value:,.0f}</text>')
        if least is not None:
            x = 150 + width * least / top
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 1}" y2="{y + 21}" class="mark"/>')
    note = f"{unit}" + (f"; the upright line is {mark}" if mark else "")
    parts.append(f'<text x="150" y="{height - 4}" class="axis">{escape(note)}</text>')
    said = ", ".join(f"{name} {value:,.0f}" for name, value, _ in rows)
    return _svg(parts, height, f"{title}: {unit}, {said}")


def nice_ceiling(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1
    power = 10 ** (len(str(int(value))) - 1) if value >= 1 else 1
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= value))


def _axis(top: float, unit: str, inner_height: float) -> str:
    lines = []
    for share in (0, 0.5, 1):
        y = _TOP + inner_height * (1 - share)
        lines.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" class="grid"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end" class="axis">{top * share:,g}</text>')
    middle = _TOP + inner_height / 2
    lines.append(
        f'<text x="12" y="{middle}" class="axis" transform="rotate(-90 12 {middle})" text-anchor="middle">'
        f"{escape(unit)}</text>"
    )
    return "".join(lines)


def _time_labels(labels: Sequence[str], step: float) -> list[str]:
    every = max(1, -(-len(labels) // 8))
    texts = [
        f'<text x="{_LEFT + place * step:.1f}" y="{_HEIGHT - 14}" class="axis">{escape(labels[place])}</text>'
        for place in range(0, len(labels), every)
    ]
    return [*texts, f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 2}" class="axis" text-anchor="end">UTC</text>']


def _legend(names: Sequence[str]) -> str:
    items = (
        f'<li><i style="background:{COLOURS[number % len(COLOURS)]}"></i>{escape(name)}</li>'
        for number, name in enumerate(names)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _svg(parts: Sequence[str], height: float, name: str) -> str:
    plot = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(name)}">{"".join(parts)}</svg>'
    return f'<div class="plot" tabindex="0" role="group" aria-label="{escape(name)}">{plot}</div>'
