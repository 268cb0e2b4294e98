"""Tables for people: columns measured in terminal cells, shortened if they do not fit."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size

from rota.server.observability.printable import printable

NARROWEST = 12
"""Minimum width of a column in cells, so that the start of ids is visible; many columns may exceed the terminal."""
_GAP = 2
_CUT = "…"


def print_table(rows: Iterable[Sequence[Any]], headings: Sequence[str] = ()) -> None:
    """Print columns as wide as their widest cell, two spaces apart.

    At a terminal the widest columns are shortened until a row fits. In a pipe or a file every cell is complete.
    """
    cells = [[heading.upper().replace("_", "-") for heading in headings]] if headings else []
    cells += [[_cell(value) for value in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    if sys.stdout.isatty():
        widths = fitting(widths, shutil.get_terminal_size().columns)
    for row in cells:
        print("  ".join(_fitted(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip())


def fitting(widths: Sequence[int], columns: int) -> list[int]:
    """Return the widths of a table of at most `columns`; only its widest columns are shortened."""
    available = columns - _GAP * (len(widths) - 1)
    if sum(widths) <= available:
        return list(widths)
    widest = next(
        (most for most in range(max(widths), NARROWEST, -1) if sum(min(width, most) for width in widths) <= available),
        NARROWEST,
    )
    return [min(width, widest) for width in widths]


def _fitted(cell: str, width: int) -> str:
    """Return the cell in exactly `width` cells of a terminal."""
    if cell_len(cell) > width:
        return set_cell_size(cell, width - 1) + _CUT
    return cell + " " * (width - cell_len(cell))


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return printable(" ".join(f"{key}={text}" for key, text in value.items())) or "-"
    return printable(str(value))
