"""Output of results: as a table for people, as JSON for programs, or as names for other commands.

JSON is in ASCII: callers' texts may have characters that control a terminal, of which JSON escapes only some.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from rota.cli.tables import print_table
from rota.protocol.limits import MAX_SAFE_INTEGER
from rota.server.observability.printable import printable

Item = Mapping[str, Any]


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
