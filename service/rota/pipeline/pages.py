"""A report as pages: HTML that needs nothing else, Markdown for a ticket, CSV for a spreadsheet."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

from rota.pipeline.atomic import write_atomically
from rota.pipeline.charts import level_bars, stacked_bars


@dataclass(frozen=True, slots=True)
class Chart:
    """`bars` over time, or `levels` side by side."""

    kind: str
    values: Any
    unit: str = ""
    mark: str = ""

    def svg(self) -> str:
        return stacked_bars(self.values) if self.kind == "bars" else level_bars(self.values, self.unit, self.mark)


@dataclass(frozen=True, slots=True)
class Section:
    """One question, answered by a table and perhaps a plot. `name` is its anchor and its CSV file."""

    name: str
    title: str
    sentence: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    chart: Chart | None = None

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
        files |= {f"{section.name}.csv": _csv(section) for section in self.sections}
        for name, text in files.items():
            write_atomically(folder / name, text)
        return [folder / name for name in files]

    def html(self) -> str:
        facts = "".join(f"<div><b>{escape(v)}</b><span>{escape(k)}</span></div>" for k, v in self.headline.items())
        links = " · ".join(f'<a href="#{s.name}">{escape(s.title)}</a>' for s in self.sections)
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>'
            f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
            f"<h1>{escape(self.title)}</h1><div class=facts>{facts}</div><nav>{links}</nav>"
            f"{''.join(map(_section_html, self.sections))}</body></html>\n"
        )

    def markdown(self) -> str:
        parts = [f"# {self.title}", "\n".join(f"- {name}: **{value}**" for name, value in self.headline.items())]
        for section in self.sections:
            lines = [section.columns, ["---"] * len(section.columns), *section.rows]
            table = "\n".join(
                "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
            )
            parts += [f"## {section.title}", section.sentence, table]
        return "\n\n".join(parts) + "\n"


def duration(value: float | None) -> str:
    """A duration as people say it."""
    if value is None:
        return "-"
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if value >= size:
            return f"{value / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{value:.0f} ms"


def _section_html(section: Section) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in section.columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in section.rows)
    chart = section.chart.svg() if section.chart else ""
    return (
        f'<section id="{section.name}"><h2>{escape(section.title)}</h2><p>{escape(section.sentence)}</p>{chart}'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></section>"
    )


def _cell(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    # Numbers and durations stay on one line.
    kind = ' class="n"' if text[:1].isdigit() else ""
    return f"<td{kind}>{escape(text)}</td>"


def _csv(section: Section) -> str:
    out = StringIO()
    writer = csv.writer(out)
    writer.writerow(section.columns)
    writer.writerows(section.rows)
    return out.getvalue()


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:980px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0 0 1rem}h2{font-size:1.15rem;margin:2.4rem 0 .2rem}p{margin:.1rem 0 .7rem;color:#555}
nav{font-size:.85rem;color:#888;margin:1rem 0}a{color:#3b6fb6;text-decoration:none}
.facts{display:grid;grid-template-columns:repeat(4,1fr);gap:.6rem}
.facts div{background:#f4f6f9;border-radius:6px;padding:.6rem .8rem}
.facts b{display:block;font-size:1.05rem}
.facts span{color:#666;font-size:.82rem}
table{border-collapse:collapse;width:100%;font-size:.9rem}th{text-align:left;color:#666;font-weight:600}
th,td{padding:.28rem .6rem .28rem 0;border-bottom:1px solid #e8e8e8;vertical-align:top}
td.n{font-variant-numeric:tabular-nums;white-space:nowrap}
svg{width:100%;height:auto;font:12px system-ui,sans-serif;margin:.2rem 0}svg .axis{fill:#777;font-size:11px}
.legend{font-size:.8rem;color:#444;margin:0 0 .8rem}.legend span{margin-right:1rem;white-space:nowrap}
.legend i{display:inline-block;width:.75em;height:.75em;margin-right:.35em;border-radius:2px}
@media(max-width:640px){.facts{grid-template-columns:repeat(2,1fr)}table{display:block;overflow-x:auto}}
"""
