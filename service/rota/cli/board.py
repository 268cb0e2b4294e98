"""The table of `rota top`: a row per group, the worst trouble first."""

from __future__ import annotations

import time
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rota.cli.calls import Server
from rota.cli.exits import CommandFailed, Exit
from rota.cli.lists import Listing
from rota.protocol.messages import ListedGroup
from rota.protocol.troubles import harm
from rota.protocol.wording import duration
from rota.server.observability.explanation import Mood, mood_of
from rota.server.observability.printable import printable

COLUMNS = ("group_id", "state", "for", "generation_id", "members", "takeovers", "leader", "why", "next")
_ORDER = {"PreparingRebalance": 0, "CompletingRebalance": 0, "Stable": 1, "Empty": 2}
_RATIOS = {"why": 3, "next": 1}
"""Shares of the remaining width for the columns that wrap."""
_STYLES = {Mood.WAITING: "bold red", Mood.BUSY: "yellow", Mood.CALM: "green", Mood.EMPTY: "dim"}

Row = dict[str, Any]


def show_live(server: Server, count: int, interval_s: float, *, all_namespaces: bool) -> None:
    """Refresh until the reader stops it; while the server does not answer, wait for it."""
    with Live(screen=True, auto_refresh=False) as screen:
        while True:
            try:
                found = rows(server, count, all_namespaces=all_namespaces)
                shown = _table("all namespaces" if all_namespaces else f"namespace {server.namespace}", found)
            except CommandFailed as failed:
                if failed.exit_code is not Exit.UNAVAILABLE:
                    raise
                shown = f"{failed}; trying again"
            screen.update(shown, refresh=True)
            time.sleep(interval_s)


def columns(*, all_namespaces: bool) -> tuple[str, ...]:
    """Return the columns of the table, from left to right."""
    return ("namespace", *COLUMNS) if all_namespaces else COLUMNS


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


def _table(title: str, found: list[Row]) -> RenderableType:
    clock = time.strftime("%H:%M:%S")
    table = Table(box=box.SIMPLE, expand=True, title=f"{title}, {clock}; end with Ctrl-C")
    shown = columns(all_namespaces="namespace" in found[0]) if found else COLUMNS
    for column in shown:
        table.add_column(column.replace("_", " "), ratio=_RATIOS.get(column), no_wrap=column not in _RATIOS)
    for row in found:
        state = Text(str(row["state"]), _STYLES[Mood(row["mood"])])
        cells = {**row, "state": state}
        # Text, because rich would interpret brackets in a member's reason as markup.
        table.add_row(*(value if isinstance(value := cells[name], Text) else _plain(value) for name in shown))
    return table


def _plain(value: object) -> Text:
    return Text(printable(str(value or "-")))
