"""A group's latest journal lines, as far as the caller may read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rota.cli.calls import LinesArePruned, Server
from rota.cli.exits import CommandFailed, Exit
from rota.cli.output import print_notice
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import DescribeGroup, DescribeReply
from rota.server.observability.timeline import how_it_ended

_LINES = 5_000
_PAGE = 1_000


def described_or_deleted(server: Server, group_id: str) -> DescribeReply:
    """Return the group's current state. If it was deleted, fail with the journal's event of its deletion."""
    try:
        return server.call(DescribeGroup(server.namespace, group_id), DescribeReply)
    except CommandFailed as failed:
        ended = how_it_ended(recent_events(server, group_id)) if failed.exit_code is Exit.DELETED else ""
        if not ended:
            raise
        name = f"Group {group_id!r} in namespace {server.namespace!r}"
        raise CommandFailed(f"{name}: {ended} ({ErrorCode.GROUP_DELETED})", Exit.DELETED) from failed


def recent_events(server: Server, group_id: str) -> list[dict[str, Any]]:
    """Return the group's events among the last few thousand of its shard, the oldest first.

    Empty if the caller may not read the journal, which contains all namespaces.
    """
    shard = server.exchange("GET", server.group_path(group_id, "coordinator"))
    try:
        lines = list(_lines(server, shard["shard_id"], shard["revision"]))
    except CommandFailed as failed:
        if failed.exit_code is not Exit.AUTH:
            raise
        return []
    return [line for line in lines if (line["namespace"], line["group_id"]) == (server.namespace, group_id)]


def past_events(
    server: Server, group_id: str, is_wanted: Callable[[dict[str, Any]], bool], *, limit: int, since_ms: int
) -> list[dict[str, Any]]:
    """Return the group's latest selected events, limited in number and not before `since_ms`, the oldest first.

    Reads the shard's journal backwards, a page at a time, only as far as needed.
    """
    shard = server.exchange("GET", server.group_path(group_id, "coordinator"))
    found: list[dict[str, Any]] = []
    end = shard["revision"]
    while end > 0 and len(found) < limit:
        begin = max(0, end - _PAGE)
        page = [line for line in _lines_between(server, shard["shard_id"], begin, end) if line["at_ms"] >= since_ms]
        own = (line for line in page if (line["namespace"], line["group_id"]) == (server.namespace, group_id))
        found[:0] = filter(is_wanted, own)
        if len(page) < end - begin:
            break  # The rest of the page is pruned, or too old, and so is everything before it.
        end = begin
    if not found and not server.has_group(group_id):
        raise CommandFailed(f"No such group {group_id!r} in namespace {server.namespace!r}", Exit.NOT_FOUND)
    return found[-limit:]


def _lines_between(server: Server, shard_id: int, after: int, end: int) -> list[dict[str, Any]]:
    """Return the lines after revision `after`, up to `end`, that are not pruned."""
    lines: list[dict[str, Any]] = []
    while after < end:
        query = (("shard", str(shard_id)), ("after", str(after)), ("limit", str(end - after)))
        try:
            page = server.exchange("GET", "/v1/events", query)["events"]
        except LinesArePruned as pruned:
            after = pruned.first_revision - 1
            continue
        if not page:
            break
        lines += page
        after = page[-1]["revision"]
    return lines


def _lines(server: Server, shard_id: int, revision: int) -> Iterator[dict[str, Any]]:
    after = max(0, revision - _LINES)
    while after < revision:
        query = (("shard", str(shard_id)), ("after", str(after)), ("limit", str(_PAGE)))
        try:
            page = server.exchange("GET", "/v1/events", query)["events"]
        except LinesArePruned as pruned:
            print_notice(f"the journal begins at revision {pruned.first_revision}: older lines are not considered")
            after = pruned.first_revision - 1
            continue
        if not page:
            return
        yield from page
        after = page[-1]["revision"]
