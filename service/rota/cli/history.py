"""A group's latest lines of the journal, as far as the server shows them to us."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rota.cli.calls import LinesArePruned, Server
from rota.cli.exits import CommandFailed, Exit
from rota.cli.output import tell

_LINES = 5_000
_PAGE = 1_000


def recent_events(server: Server, group_id: str) -> list[dict[str, Any]]:
    """What the last few thousand lines of the group's shard tell of the group, the oldest first.

    Empty where we may not read the journal, which is of all namespaces.
    """
    shard = server.exchange("GET", server.group_path(group_id, "coordinator"))
    try:
        lines = list(_lines(server, shard["shard_id"], shard["revision"]))
    except CommandFailed as failed:
        if failed.exit_code is not Exit.AUTH:
            raise
        return []
    return [line for line in lines if (line["namespace"], line["group_id"]) == (server.namespace, group_id)]


def _lines(server: Server, shard_id: int, revision: int) -> Iterator[dict[str, Any]]:
    after = max(0, revision - _LINES)
    while after < revision:
        query = (("shard", str(shard_id)), ("after", str(after)), ("limit", str(_PAGE)))
        try:
            page = server.exchange("GET", "/v1/events", query)["events"]
        except LinesArePruned as pruned:
            tell(f"the journal begins at revision {pruned.first_revision}: older lines are not considered")
            after = pruned.first_revision - 1
            continue
        if not page:
            return
        yield from page
        after = page[-1]["revision"]
