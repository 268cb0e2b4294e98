"""The table of `rota top`: a row per group, with the members that it waits for."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rota.cli.calls import Server
from rota.cli.exits import CommandFailed, Exit
from rota.cli.lists import Items, Listing
from rota.observability.explanation import Explanation, Mood, explain
from rota.observability.printable import printable
from rota.protocol.messages import DescribeGroup, DescribeReply, ListGroups, ListReply
from rota.protocol.wording import duration

COLUMNS = ("group_id", "state", "for", "generation_id", "members", "leader", "why")
_ORDER = {"PreparingRebalance": 0, "CompletingRebalance": 0, "Stable": 1, "Empty": 2}
_STYLES = {Mood.WAITING: "bold red", Mood.BUSY: "yellow", Mood.CALM: "green", Mood.EMPTY: "dim"}

Row = dict[str, Any]


def show_live(server: Server, count: int, interval_s: float, *, all_namespaces: bool) -> None:
    """Refresh until the reader stops it; a server that stops answering is waited for."""
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
    """The columns of the table, from left to right."""
    return ("namespace", *COLUMNS) if all_namespaces else COLUMNS


def rows(server: Server, count: int, *, all_namespaces: bool) -> list[Row]:
    """A row a group, first of those that rebalance, then of the largest."""
    listing = Listing(COLUMNS, "group_id", all_namespaces=all_namespaces)
    listed = listing.gathered(server, lambda namespace: _groups(server, namespace))
    listed.sort(key=lambda group: (_ORDER.get(group["state"], 3), -group["members"], group["group_id"]))
    found: list[Row] = []
    for group in listed[:count]:
        namespace = group.get("namespace", server.namespace)
        if (row := _row(server, namespace, group["group_id"])) is not None:
            found.append({"namespace": namespace, **row} if all_namespaces else row)
    return found


def _groups(server: Server, namespace: str) -> Items:
    groups: Items = []
    more, after = True, ""
    while more:
        page = server.call(ListGroups(namespace, after=after), ListReply)
        groups += [asdict(group) for group in page.groups]
        more, after = page.more, page.groups[-1].group_id if page.groups else ""
    return groups


def _row(server: Server, namespace: str, group_id: str) -> Row | None:
    """None for a group that is gone by now."""
    try:
        group = server.call(DescribeGroup(namespace, group_id), DescribeReply)
    except CommandFailed as failed:
        if failed.exit_code is not Exit.NOT_FOUND:
            raise
        return None
    now_ms = int(time.time() * 1_000)
    explanation = explain(group, now_ms)
    return {
        "group_id": group_id,
        "state": group.state,
        "for": duration(now_ms - group.state_since_ms),
        "generation_id": group.generation_id,
        "members": len(group.members),
        "leader": group.leader_id or None,
        "why": _why(group, explanation),
        "mood": explanation.mood.value,
    }


def _why(group: DescribeReply, explanation: Explanation) -> str:
    """The members that the group waits for, if any; otherwise the reason of its last rebalance."""
    about = next((point.text for point in explanation.points if point.about in ("waits for", "silent")), "")
    return about or (group.rebalance_reason if group.state == "Stable" else explanation.headline)


def _table(title: str, found: list[Row]) -> RenderableType:
    clock = time.strftime("%H:%M:%S")
    table = Table(box=box.SIMPLE, expand=True, title=f"{title}, {clock}; end with Ctrl-C")
    shown = columns(all_namespaces="namespace" in found[0]) if found else COLUMNS
    for column in shown:
        table.add_column(column.replace("_", " "), ratio=1 if column == "why" else None, no_wrap=column != "why")
    for row in found:
        state = Text(str(row["state"]), _STYLES[Mood(row["mood"])])
        cells = {**row, "state": state}
        # Unchanged: rich would take brackets in a member's reason for its markup.
        table.add_row(*(value if isinstance(value := cells[name], Text) else _plain(value) for name in shown))
    return table


def _plain(value: object) -> Text:
    return Text(printable(str(value or "-")))
