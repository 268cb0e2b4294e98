"""A report as pages: HTML that needs nothing else, Markdown for a ticket, CSV for a spreadsheet."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from rota.server.observability.timeline import printable


class Link(NamedTuple):
    """A text that leads to a section of the page, where that is there."""

    text: str
    anchor: str

    def __str__(self) -> str:
        return self.text


def group_link(namespace: str, group_id: str) -> Link:
    """The group's name, leading to its section."""
    name = f"{namespace}/{group_id}"
    return Link(name, "group-" + re.sub(r"[^A-Za-z0-9_-]", lambda odd: f".{ord(odd[0]):x}", name))


@dataclass(frozen=True, slots=True)
class Chart:
    """`bars` over time, or `levels` side by side."""

    kind: str
    values: Any
    unit: str = ""
    mark: str = ""

    def svg(self, title: str) -> str:
        bars = self.kind == "bars"
        return stacked_bars(self.values, title) if bars else level_bars(self.values, self.unit, self.mark, title)


@dataclass(frozen=True, slots=True)
class Section:
    """One question, answered by a table and perhaps a plot. `name` is its anchor and its CSV file.

    A section `of` another one stands below it, is not in the list of sections, and has no file of its own.
    """

    name: str
    title: str
    sentence: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    chart: Chart | None = None
    of: str = ""

    def with_chart(self, chart: Chart) -> Section:
        return replace(self, chart=chart)


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    headline: dict[str, str]
    sections: Sequence[Section]

    def write(self, folder: Path) -> list[Path]:
        """index.html, report.md and a CSV a section; returns their paths."""
        files = {"index.html": self.html(), "report.md": self.markdown()}
        files |= {
            f"{section.name}.csv": _csv(section) for section in self.sections if section.columns and not section.of
        }
        for name, text in files.items():
            _write(folder / name, text)
        return [folder / name for name in files]

    def html(self) -> str:
        facts = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in self.headline.items())
        links = "".join(f'<li><a href="#{s.name}">{escape(s.title)}</a></li>' for s in self.sections if not s.of)
        anchors = frozenset(section.name for section in self.sections)
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>'
            '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
            f"<style>{_STYLE}</style></head><body><main>"
            f"<h1>{escape(self.title)}</h1><dl class=facts>{facts}</dl>"
            f'<nav aria-label="Sections"><ul>{links}</ul></nav>'
            f"{''.join(_section_html(section, anchors) for section in self.sections)}</main></body></html>\n"
        )

    def markdown(self) -> str:
        facts = (f"- {markdown(name)}: **{markdown(value)}**" for name, value in self.headline.items())
        parts = [f"# {markdown(self.title)}", "\n".join(facts)]
        for section in self.sections:
            parts += [f"{'###' if section.of else '##'} {markdown(section.title)}", markdown(section.sentence)]
            if section.rows:
                lines = [f"| {' | '.join(map(markdown, line))} |" for line in (section.columns, *section.rows)]
                parts.append("\n".join((lines[0], "| --- " * len(section.columns) + "|", *lines[1:])))
        return "\n\n".join(parts) + "\n"


def _write(path: Path, text: str) -> None:
    """Replace a file whole: a reader sees the old page or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text)
    beside.replace(path)


def markdown(value: object) -> str:
    """A text inside of a line of Markdown, in which it is only text: no HTML, structure, link or other line."""
    return _MARKDOWN.sub(r"\\\g<0>", escape(printable(str(value)), quote=False))


def csv_cell(value: object) -> object:
    """A value as a cell of CSV that no spreadsheet takes for a formula. Numbers stay numbers.

    As OWASP advises: an apostrophe before what may begin one, also behind a semicolon, which separates cells in some
    countries. A sign before a number begins none.
    """
    if value is None or isinstance(value, int | float):
        return value
    text = printable(str(value))
    return text if _NUMBER.fullmatch(text) else _FORMULA.sub("'", text)


def duration(value: float | None) -> str:
    """A duration as people say it."""
    if value is None:
        return "-"
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if value >= size:
            return f"{value / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{value:.0f} ms"


def _section_html(section: Section, anchors: Collection[str]) -> str:
    level = 3 if section.of else 2
    heading = f"<h{level}>{escape(section.title)}</h{level}>"
    chart = section.chart.svg(section.title) if section.chart else ""
    return (
        f'<section id="{section.name}">{heading}'
        f"<p>{escape(section.sentence)}</p>{chart}{_table(section, anchors) if section.rows else ''}</section>"
    )


def _table(section: Section, anchors: Collection[str]) -> str:
    """In a box of its own, which scrolls on a narrow screen, by the keyboard as well."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in section.columns)
    body = "".join(f"<tr>{''.join(_cell(value, anchors) for value in row)}</tr>" for row in section.rows)
    return (
        f'<div class=scrolls tabindex=0 role=region aria-label="Table: {escape(section.title)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(value: Any, anchors: Collection[str]) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    shown = escape(text)
    if isinstance(value, Link) and value.anchor in anchors:
        shown = f'<a href="#{value.anchor}">{shown}</a>'
    # Numbers, durations, codes and names stay on one line; sentences do not.
    is_word = len(text) <= _LONG and (text[:1].isdigit() or " " not in text)
    kind = ' class="n"' if is_word else ' class="long"' if len(text) > _LONG else ""
    return f"<td{kind}>{shown}</td>"


def _csv(section: Section) -> str:
    out = StringIO()
    csv.writer(out).writerows(map(csv_cell, row) for row in (section.columns, *section.rows))
    return out.getvalue()


_LONG = 30
_MARKDOWN = re.compile(r"[\\`*_\[\]|~]|(?<=:)//|(?<=www)\.")
_FORMULA = re.compile(r"(?:^|(?<=;))(?=\s*[=+\-@＝＋－＠])")
_NUMBER = re.compile(r"[+-]?\d*\.?\d*")
_STYLE = """
:root{color-scheme:light dark;--text:#222;--soft:#595959;--page:#fff;--box:#f4f6f9;--line:#d9d9d9;--link:#245a9e;
--c0:#3b6fb6;--c1:#d1603d;--c2:#4f9d69;--c3:#9a6fb8;--c4:#c98a00;--c5:#6b7a8f;--c6:#c2517a;--c7:#23898a;--c8:#8a6d3b;--c9:#7f8f2a}
@media(prefers-color-scheme:dark){:root{--text:#e4e6ea;--soft:#a9b0bb;--page:#15181d;--box:#20252d;--line:#3a414c;
--link:#8ab8f2;--c0:#6c9fe0;--c1:#e58663;--c2:#74c08c;--c3:#b995d3;--c4:#e0b04a;--c5:#9aa8bb;--c6:#df7fa2;--c7:#5bbfc0;
--c8:#c2a06a;--c9:#b7c566}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;color:var(--text);background:var(--page);margin:0}
main{max-width:1240px;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.5rem;margin:0 0 1rem}h2{font-size:1.15rem;margin:2.4rem 0 .2rem}h3{font-size:1rem;margin:1.6rem 0 .2rem}
p{margin:.1rem 0 .7rem;color:var(--soft);max-width:75ch}
nav ul{display:flex;flex-wrap:wrap;gap:.2rem 1rem;list-style:none;padding:0;margin:1rem 0;font-size:.87rem}
a{color:var(--link);text-decoration:underline;text-underline-offset:.15em}
:target>h2,:target>h3{text-decoration:underline}
.facts{display:grid;grid-template-columns:repeat(4,1fr);gap:.6rem;margin:0}
.facts div:first-child{grid-column:span 2}.facts div{background:var(--box);border-radius:6px;padding:.6rem .8rem;
display:flex;flex-direction:column-reverse;justify-content:flex-end}
.facts dd{margin:0;font-size:1.05rem;font-weight:600}.facts dt{color:var(--soft);font-size:.82rem}
.scrolls{overflow-x:auto}.scrolls:focus-visible{outline:2px solid var(--link);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th{text-align:left;color:var(--soft);font-weight:600;white-space:nowrap}
th,td{padding:.28rem .9rem .28rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n{font-variant-numeric:tabular-nums;white-space:nowrap}td.long{min-width:16em;overflow-wrap:anywhere}
svg{width:100%;height:auto;font:12px system-ui,sans-serif;margin:.2rem 0;fill:var(--text)}
svg .axis{fill:var(--soft);font-size:11px}svg .grid{stroke:var(--line)}svg .mark{stroke:var(--text);stroke-width:2}
.legend{font-size:.8rem;margin:0 0 .8rem;padding:0;list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1rem}
.legend i{display:inline-block;width:.75em;height:.75em;margin-right:.35em;border-radius:2px}
@media(max-width:640px){.facts{grid-template-columns:repeat(2,1fr)}svg{min-width:640px}.plot{overflow-x:auto}}
@media print{.scrolls{overflow:visible}}
"""


# --- charts ---------------------------------------------------------------------------------------------------

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
