"""`rota top`: the groups of a namespace, live; groups in trouble first."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rota.cli.exits import CommandFailed, Exit
from rota.cli.lists import AllNamespaces, Listing
from rota.cli.options import ChosenFormat, a_number, at_server
from rota.cli.output import Output, print_items
from rota.protocol.troubles import harm
from rota.protocol.wording import duration
from rota.server.observability.timeline import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rota.cli.calls import Server
    from rota.protocol.messages import ListedGroup

COLUMNS = ("group_id", "state", "for", "generation_id", "members", "takeovers", "leader", "why", "next")
_ORDER = {"PreparingRebalance": 0, "CompletingRebalance": 0, "Stable": 1, "Empty": 2}
_RATIOS = {"why": 3, "next": 1}
"""Shares of the remaining width for the columns that wrap."""
_STYLES = {"waiting": "bold red", "busy": "yellow", "calm": "green", "empty": "dim"}

Row = dict[str, Any]


@at_server
def top(
    server: Server,
    count: Annotated[int, typer.Option("--rows", "-n", min=1, max=200, help="Number of groups to show.")] = 20,
    interval: Annotated[
        float, typer.Option(min=0.1, callback=a_number, metavar="SECONDS", help="Seconds between two refreshes.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit; the default without a terminal.")] = False,
    all_namespaces: AllNamespaces = False,
    output: ChosenFormat = None,
) -> None:
    """Show groups live: first those in trouble, the worst first, each with the next command to type.

    Then come those that rebalance, then the largest.
    """
    columns = ("namespace", *COLUMNS) if all_namespaces else COLUMNS
    if once or output or not sys.stdout.isatty():
        found = rows(server, count, all_namespaces=all_namespaces)
        print_items(found, output or Output.TABLE, columns=columns, name="group_id")
        return
    from rich.live import Live

    title = "all namespaces" if all_namespaces else f"namespace {server.namespace}"
    with Live(screen=True, auto_refresh=False) as screen:
        while True:
            try:
                shown = _table(title, columns, rows(server, count, all_namespaces=all_namespaces))
            except CommandFailed as failed:
                if failed.exit_code is not Exit.UNAVAILABLE:
                    raise
                shown = f"{failed}; trying again"
            screen.update(shown, refresh=True)
            time.sleep(interval)


def rows(server: Server, count: int, *, all_namespaces: bool) -> list[Row]:
    """Return a row per group: first groups in trouble, the worst first, then those that rebalance, then the largest."""
    listing = Listing(COLUMNS, "group_id", all_namespaces=all_namespaces)
    listed = listing.gathered(server, lambda namespace: [{"group": group} for group in server.groups(namespace)])
    listed.sort(key=_urgency)
    now_ms = int(time.time() * 1_000)
    return [{**_row(item.pop("group"), now_ms), **item} for item in listed[:count]]


def _urgency(item: Row) -> tuple[Any, ...]:
    group: ListedGroup = item["group"]
    return (*harm(group.troubles), _ORDER.get(group.state, 3), -group.members, group.group_id)


def _row(group: ListedGroup, now_ms: int) -> Row:
    from rota.server.observability.explanation import mood_of

    trouble = group.troubles[0] if group.troubles else None
    return {
        "group_id": group.group_id,
        "state": group.state,
        "for": duration(now_ms - group.state_since_ms),
        "generation_id": group.generation_id,
        "members": group.members,
        "takeovers": group.takeovers,
        "leader": group.leader_id or None,
        "why": trouble.text if trouble else group.rebalance_reason,
        "next": trouble.next_step if trouble else None,
        "mood": mood_of(group).value,
    }


def _table(title: str, columns: tuple[str, ...], found: list[Row]) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    clock = time.strftime("%H:%M:%S")
    table = Table(box=box.SIMPLE, expand=True, title=f"{title}, {clock}; end with Ctrl-C")
    for column in columns:
        table.add_column(column.replace("_", " "), ratio=_RATIOS.get(column), no_wrap=column not in _RATIOS)
    for row in found:
        # Text, because rich would interpret brackets in a member's reason as markup.
        cells = (
            Text(printable(str(row[name] or "-")), _STYLES[row["mood"]] if name == "state" else "") for name in columns
        )
        table.add_row(*cells)
    return table
