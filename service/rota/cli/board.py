"""The table of `rota top`: a row per group, with the members that it waits for."""

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
from rota.observability.explanation import Explanation, Mood, duration, explain
from rota.observability.printable import printable
from rota.protocol.messages import DescribeGroup, DescribeReply, ListedGroup, ListGroups, ListReply

COLUMNS = ("group_id", "state", "for", "generation_id", "members", "leader", "why")
_ORDER = {"PreparingRebalance": 0, "CompletingRebalance": 0, "Stable": 1, "Empty": 2}
_STYLES = {Mood.WAITING: "bold red", Mood.BUSY: "yellow", Mood.CALM: "green", Mood.EMPTY: "dim"}

Row = dict[str, Any]


def show_live(server: Server, count: int, interval_s: float) -> None:
    """Refresh until the reader stops it; a server that stops answering is waited for."""
    with Live(screen=True, auto_refresh=False) as screen:
        while True:
            try:
                shown = _table(server, rows(server, count))
            except CommandFailed as failed:
                if failed.exit_code is not Exit.UNAVAILABLE:
                    raise
                shown = f"{failed}; trying again"
            screen.update(shown, refresh=True)
            time.sleep(interval_s)


def rows(server: Server, count: int) -> list[Row]:
    """A row a group, first of those that rebalance, then of the largest."""
    listed = sorted(_groups(server), key=lambda group: (_ORDER.get(group.state, 3), -group.members, group.group_id))
    return [row for group in listed[:count] if (row := _row(server, group.group_id)) is not None]


def _groups(server: Server) -> list[ListedGroup]:
    groups: list[ListedGroup] = []
    more, after = True, ""
    while more:
        page = server.call(ListGroups(server.namespace, after=after), ListReply)
        groups += page.groups
        more, after = page.more, page.groups[-1].group_id if page.groups else ""
    return groups


def _row(server: Server, group_id: str) -> Row | None:
    """None for a group that is gone by now."""
    try:
        group = server.call(DescribeGroup(server.namespace, group_id), DescribeReply)
    except CommandFailed as failed:
        if failed.exit_code is not Exit.NOT_FOUND:
            raise
        return None
    now_ms = int(time.time() * 1_000)
    told = explain(group, now_ms)
    return {
        "group_id": group_id,
        "state": group.state,
        "for": duration(now_ms - group.state_since_ms),
        "generation_id": group.generation_id,
        "members": len(group.members),
        "leader": group.leader_id or None,
        "why": _told(group, told),
        "mood": told.mood.value,
    }


def _told(group: DescribeReply, told: Explanation) -> str:
    """The members that the group waits for, if any; otherwise the reason of its last rebalance."""
    about = next((point.text for point in told.points if point.about in ("waits for", "silent")), "")
    return about or (group.rebalance_reason if group.state == "Stable" else told.headline)


def _table(server: Server, found: list[Row]) -> RenderableType:
    clock = time.strftime("%H:%M:%S")
    table = Table(box=box.SIMPLE, expand=True, title=f"namespace {server.namespace}, {clock}; end with Ctrl-C")
    for column in COLUMNS:
        table.add_column(column.replace("_", " "), ratio=1 if column == "why" else None, no_wrap=column != "why")
    for row in found:
        state = Text(str(row["state"]), _STYLES[Mood(row["mood"])])
        cells = {**row, "state": state}
        # Unchanged: rich would take brackets in a member's reason for its markup.
        table.add_row(*(value if isinstance(value := cells[name], Text) else _plain(value) for name in COLUMNS))
    return table


def _plain(value: object) -> Text:
    return Text(printable(str(value or "-")))
