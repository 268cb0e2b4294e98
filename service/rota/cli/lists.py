"""`--sort`, `--limit` and `--watch`: common options of the commands that list items."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from rota.cli.exits import CommandFailed, Exit
from rota.cli.output import Output, print_items, print_notice
from rota.protocol.suggestions import unknown

if TYPE_CHECKING:
    from rota.cli.calls import Server

Found = TypeVar("Found")

POLL_S = 2.0

Sort = Annotated[
    str | None,
    typer.Option(
        "--sort", metavar="COLUMN", help="Sort by this column; -COLUMN for the largest first.", show_default=False
    ),
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of items.", show_default=False)]
AllNamespaces = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="List the items of all namespaces that you may read.")
]
Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="Print the list again each time that it changes, until Ctrl-C.")
]

Items = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Listing:
    """A list with the options for sorting, limiting and watching."""

    columns: Sequence[str]
    name: str
    sort: str | None = None
    limit: int | None = None
    watch: bool = False
    ages: Collection[str] = ()
    """Columns that change with time: their changes alone do not make `--watch` print again."""
    all_namespaces: bool = False

    def __post_init__(self) -> None:
        if self.sort is not None and self._column not in self._shown:
            raise CommandFailed(unknown("column", self.sort, self._shown), Exit.USAGE)

    @property
    def _shown(self) -> Sequence[str]:
        return ("namespace", *self.columns) if self.all_namespaces else self.columns

    @property
    def _column(self) -> str:
        return (self.sort or "").removeprefix("-").lower().replace("-", "_")

    def print(self, read: Callable[[], Items], output: Output) -> None:
        """Print the result of `read`, once or at each change; `read` raises if the server is unavailable."""
        shown: Items | None = None
        while True:
            items = self._arranged(read() if shown is None else read_patiently(read))
            if shown is None or _without(items, self.ages) != _without(shown, self.ages):
                if self.watch and output is Output.TABLE and sys.stdout.isatty():
                    from rich.console import Console

                    Console().clear()
                print_items(items, output, columns=self._shown, name=self.name)
                shown = items
            if not self.watch:
                return
            sys.stdout.flush()
            time.sleep(POLL_S)

    def gathered(self, server: Server, read: Callable[[str], Items]) -> Items:
        """Return the items of the chosen namespace, or of all that the caller may read; `read` reads one namespace."""
        if not self.all_namespaces:
            return read(server.namespace)
        items: Items = []
        for namespace in server.namespaces():
            if self.is_enough(items):
                break
            try:
                found = read(namespace)
            except CommandFailed as failed:
                # A caller that may list only the groups of a namespace may not list its topics.
                if failed.exit_code is not Exit.AUTH:
                    raise
                continue
            items += [{"namespace": namespace, **item} for item in found]
        return items

    def is_enough(self, items: Items) -> bool:
        """Return whether no more pages need to be read; a sorted list needs all pages."""
        return self.sort is None and self.limit is not None and len(items) >= self.limit

    def _arranged(self, items: Items) -> Items:
        if self.sort is not None:
            column = self._column
            # Sort by the time itself if the column shows its age.
            key = f"{column}_at_ms" if column in self.ages else column
            items = sorted(items, key=lambda item: _order_of(item[key]), reverse=self.sort.startswith("-"))
        return items[: self.limit]


def read_patiently(read: Callable[[], Found]) -> Found:
    """Read again while no server answers, without a time limit: a watch does not end."""
    while True:
        try:
            return read()
        except CommandFailed as failed:
            if failed.exit_code is not Exit.UNAVAILABLE:
                raise
            print_notice(f"{failed}; trying again")
        time.sleep(POLL_S)


def _order_of(value: Any) -> tuple[bool, float, str]:
    """Return the sort key: numbers by value, other values as text; missing values first."""
    is_number = isinstance(value, int | float)
    return (value is not None, float(value) if is_number else 0.0, "" if is_number or value is None else str(value))


def _without(items: Items, columns: Collection[str]) -> Items:
    return [{name: value for name, value in item.items() if name not in columns} for item in items]
