"""Output of results: as a table for people, as JSON for programs, or as names for other commands.

JSON is in ASCII: callers' texts may have characters that control a terminal, of which JSON escapes only some.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from rich.cells import cell_len, set_cell_size

from rota.protocol.limits import MAX_SAFE_INTEGER
from rota.server.observability.timeline import printable

Item = Mapping[str, Any]

NARROWEST = 12
"""Minimum width of a column in cells, so that the start of ids is visible; many columns may exceed the terminal."""
_GAP = 2
_CUT = "…"


class Output(StrEnum):
    """The formats of `-o`: json is one document, ndjson one line per item, name only the identifiers of items."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    NAME = "name"


def print_items(items: Sequence[Item], output: Output, *, columns: Sequence[str], name: str) -> None:
    """Print a list. `columns` are the keys that the table shows; json and ndjson show all of them."""
    match output:
        case Output.TABLE:
            print_table([[item[column] for column in columns] for item in items], headings=columns)
        case Output.JSON:
            print(json.dumps([_for_json(item) for item in items], indent=2))
        case Output.NDJSON:
            for item in items:
                print(as_line(item))
        case Output.NAME:
            for item in items:
                print(printable(str(item[name])))


def print_item(item: Item, output: Output, *, name: str) -> None:
    """Print one item; the table has a row for each of its keys."""
    if output is Output.TABLE:
        print_table([[f"{key}:", value] for key, value in item.items()])
    elif output is Output.JSON:
        print(json.dumps(_for_json(item), indent=2))
    else:
        print_items([item], output, columns=(), name=name)


def as_line(item: Item) -> str:
    """Return an item as one line of JSON."""
    return json.dumps(_for_json(item), separators=(",", ":"))


def _for_json(item: Item) -> Item:
    """Return the item with numbers as strings if readers of doubles would change them."""
    return {
        key: str(value) if isinstance(value, int) and value > MAX_SAFE_INTEGER else value for key, value in item.items()
    }


def print_notice(message: str) -> None:
    """Print a message for the person at the terminal: to standard error, because standard output is data."""
    print(printable(message), file=sys.stderr, flush=True)


# --- tables ----------------------------------------------------------------------------------------


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
    if isinstance(value, list):
        value = "; ".join(map(str, value)) or "-"
    if isinstance(value, Mapping):
        return printable(" ".join(f"{key}={text}" for key, text in value.items())) or "-"
    return printable(str(value))
