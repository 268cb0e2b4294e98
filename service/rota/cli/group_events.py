"""`rota groups watch` and `history`: a group's lines of the journal, live and past."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rota.cli.exits import CommandFailed, Exit
from rota.cli.options import ChosenFormat, Group, OutputFormat
from rota.cli.output import Output, as_line, print_notice
from rota.cli.times import since_ms
from rota.protocol.defaults import RECONNECT_TIMEOUT_MS, STREAM_SILENCE_MS
from rota.protocol.errors import ErrorCode
from rota.server.observability.timeline import how_it_ended, printable, timeline_line

if TYPE_CHECKING:
    from rota.cli.calls import Server
    from rota.protocol.messages import DescribeReply

EARLIEST = "earliest"
_PAUSE_S = 0.5
_LATEST_LINES = 5_000
_PAGE = 1_000

Event = dict[str, Any]
Kinds = Annotated[
    list[str] | None,
    typer.Option("--kind", metavar="KIND", help="Only events of this kind, such as rebalance_started; repeatable."),
]


def watch(
    server: Server,
    group: Group,
    after: Annotated[
        str | None,
        typer.Option(
            "--after",
            metavar="REVISION",
            help="Start after this revision; 0: with the first event ever; `earliest`: with the first remaining event.",
        ),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after this number of events.")] = None,
    kind: Kinds = None,
    commits: Annotated[bool, typer.Option(help="Show commits of offsets, too.")] = True,
    output: ChosenFormat = None,
) -> None:
    """Follow a group live: every event with its reason, one per line.

    At a terminal the lines are text, otherwise each is a JSON object; -o chooses table or ndjson.
    Resumes without a gap when the server restarts.
    """
    beginning: int | str | None = after
    if after is not None and after != EARLIEST:
        if not (after.isascii() and after.isdigit() and len(after) < 19):
            raise typer.BadParameter("must be a revision (0 or more), or `earliest`", param_hint="--after")
        beginning = int(after)
    is_shown, is_text = _filter(kind, commits=commits), output is Output.TABLE if output else sys.stdout.isatty()
    for event in islice(filter(is_shown, group_events(server, group, beginning)), count):
        _print_event(event, as_text=is_text)


def history(
    server: Server,
    group: Group,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only events since then: 90s, 15m, 12h, 30d ago, or 2026-11-24T07:00.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of latest events.")] = 50,
    kind: Kinds = None,
    commits: Annotated[bool, typer.Option(help="Show commits of offsets, too.")] = False,
    output: OutputFormat = Output.TABLE,
) -> None:
    """Show the latest events of a group, the oldest first, and end. Takes the right to read the journal.

    `rota groups watch` follows a group live, and needs only the right to describe it.
    """
    is_shown, not_before_ms = _filter(kind, commits=commits), since_ms(since)
    events = past_events(server, group, is_shown, limit=limit, since_ms=not_before_ms)
    if output is Output.JSON:
        print(json.dumps(events, indent=2))
        return
    for event in events:
        if output is Output.NAME:
            print(event["revision"])
        else:
            _print_event(event, as_text=output is Output.TABLE)


def _filter(kinds: list[str] | None, *, commits: bool) -> Callable[[Event], bool]:
    """Return the filter that the options request. Kinds that are named are shown, whatever `--commits` says."""
    from rota.core.group.records import RECORD_KINDS
    from rota.protocol.suggestions import unknown

    if wrong := [kind for kind in kinds or () if kind not in RECORD_KINDS]:
        raise CommandFailed(unknown("kind", wrong[0], RECORD_KINDS), Exit.USAGE)
    if kinds:
        return lambda event: event["kind"] in kinds
    return lambda event: commits or event["kind"] != "offsets_committed"


def _print_event(event: Event, *, as_text: bool) -> None:
    print(printable(timeline_line(event)) if as_text else as_line(event), flush=True)


# --- live ------------------------------------------------------------------------------------------


def group_events(server: Server, group_id: str, beginning: int | str | None) -> Iterator[Event]:
    """Yield the group's events after revision `beginning`, or from now on, then live and without end.

    `earliest` starts with the first remaining event. If the server stops, the command waits for half a minute, and
    skips no event: if the next ones are pruned by then, or the store has lost the last one, it fails.
    """
    from rota.cli.calls import RevisionOutOfRange

    skips_pruned = beginning == EARLIEST
    after = 0 if isinstance(beginning, str) else beginning
    if after is None:
        after = int(server.exchange("GET", server.group_path(group_id, "coordinator"))["revision"])
    if not server.has_group(group_id):
        # A misspelt name has no events either, so tell the user that the group does not exist.
        print_notice(
            f"there is no group {group_id} in namespace {server.namespace}; its events are shown once it exists"
        )
    give_up_at: float | None = None
    while True:
        opened_at = time.monotonic()
        try:
            for event in server.events(server.group_path(group_id, "events"), after):
                after, give_up_at, skips_pruned = event["revision"], None, False
                yield event
        except RevisionOutOfRange as beyond:
            after = beyond.next_after
            if not (beyond.is_pruned and skips_pruned):
                text = f"{beyond}; `--after {after}` does that"
                raise RevisionOutOfRange(text, after, is_pruned=beyond.is_pruned) from beyond
            print_notice(f"the journal begins at revision {after + 1}: older events are pruned")
            continue
        except CommandFailed as failed:
            if failed.exit_code is not Exit.UNAVAILABLE:
                raise
            if time.monotonic() - opened_at >= STREAM_SILENCE_MS / 1000:
                give_up_at = None  # A server answered but sent no event, or the connection became silent.
            give_up_at = give_up_at or time.monotonic() + RECONNECT_TIMEOUT_MS / 1000
            if time.monotonic() > give_up_at:
                raise
            print_notice(f"{failed}; trying again")
        time.sleep(_PAUSE_S)


# --- past ------------------------------------------------------------------------------------------


def described_or_deleted(server: Server, group_id: str) -> DescribeReply:
    """Return the group's current state. If it was deleted, fail with the journal's event of its deletion."""
    from rota.protocol.messages import DescribeGroup, DescribeReply

    try:
        return server.call(DescribeGroup(server.namespace, group_id), DescribeReply)
    except CommandFailed as failed:
        ended = how_it_ended(recent_events(server, group_id)) if failed.exit_code is Exit.DELETED else ""
        if not ended:
            raise
        name = f"Group {group_id!r} in namespace {server.namespace!r}"
        raise CommandFailed(f"{name}: {ended} ({ErrorCode.GROUP_DELETED})", Exit.DELETED) from failed


def recent_events(server: Server, group_id: str) -> list[Event]:
    """Return the group's events among the last few thousand of its shard, the oldest first.

    Empty if the caller may not read the journal, which contains all namespaces.
    """
    shard = server.exchange("GET", server.group_path(group_id, "coordinator"))
    last, after = shard["revision"], max(0, shard["revision"] - _LATEST_LINES)
    try:
        lines = _lines(server, shard["shard_id"], after, last)
    except CommandFailed as failed:
        if failed.exit_code is not Exit.AUTH:
            raise
        return []
    if lines and lines[0]["revision"] > after + 1:
        print_notice(f"the journal begins at revision {lines[0]['revision']}: older lines are not considered")
    return _of_group(server, group_id, lines)


def past_events(
    server: Server, group_id: str, is_wanted: Callable[[Event], bool], *, limit: int, since_ms: int
) -> list[Event]:
    """Return the group's latest selected events, limited in number and not before `since_ms`, the oldest first.

    Reads the shard's journal backwards, a page at a time, only as far as needed.
    """
    shard = server.exchange("GET", server.group_path(group_id, "coordinator"))
    found: list[Event] = []
    end = shard["revision"]
    while end > 0 and len(found) < limit:
        begin = max(0, end - _PAGE)
        page = [line for line in _lines(server, shard["shard_id"], begin, end) if line["at_ms"] >= since_ms]
        found[:0] = filter(is_wanted, _of_group(server, group_id, page))
        if len(page) < end - begin:
            break  # The rest of the page is pruned, or too old, and so is everything before it.
        end = begin
    if not found and not server.has_group(group_id):
        raise CommandFailed(f"No such group {group_id!r} in namespace {server.namespace!r}", Exit.NOT_FOUND)
    return found[-limit:]


def _lines(server: Server, shard_id: int, after: int, end: int) -> list[Event]:
    """Return a shard's lines after revision `after`, up to `end`, that are not pruned."""
    from rota.cli.calls import RevisionOutOfRange

    lines: list[Event] = []
    while after < end:
        query = (("shard", str(shard_id)), ("after", str(after)), ("limit", str(min(_PAGE, end - after))))
        try:
            page = server.exchange("GET", "/v1/events", query)["events"]
        except RevisionOutOfRange as pruned:
            after = pruned.next_after
            continue
        if not page:
            break
        lines += page
        after = page[-1]["revision"]
    return lines


def _of_group(server: Server, group_id: str, lines: list[Event]) -> list[Event]:
    return [line for line in lines if (line["namespace"], line["group_id"]) == (server.namespace, group_id)]
