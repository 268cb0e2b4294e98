"""A watch of a group's journal over HTTP, across restarts of the server, without a gap."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from rota.cli.calls import JournalIsShorter, LinesArePruned, Server, failure_in
from rota.cli.exits import CommandFailed, Exit
from rota.cli.output import print_notice
from rota.protocol.defaults import RECONNECT_TIMEOUT_MS, STREAM_SILENCE_MS
from rota.protocol.wire.problems import PRUNED_EVENT, decode_problem

_PAUSE_S = 0.5
EARLIEST = "earliest"


def group_events(server: Server, group_id: str, beginning: int | str | None) -> Iterator[dict[str, Any]]:
    """Yield the group's events after revision `beginning`, or from now on, then live and without end.

    `earliest` starts with the first remaining event. If the server stops, the command waits for half a minute, and
    skips no event: if the next ones are pruned by then, or the store has lost the last one, it fails.
    """
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
            for event in _stream(server, group_id, after):
                after, give_up_at, skips_pruned = event["revision"], None, False
                yield event
        except LinesArePruned as pruned:
            first = pruned.first_revision
            if not skips_pruned:
                raise LinesArePruned(f"{pruned}; `--after {first - 1}` does that", first) from pruned
            print_notice(f"the journal begins at revision {first}: older events are pruned")
            after = first - 1
            continue
        except JournalIsShorter as shorter:
            last = shorter.last_revision
            raise JournalIsShorter(f"{shorter}; `--after {last}` does that", last) from shorter
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


def _stream(server: Server, group_id: str, after: int) -> Iterator[dict[str, Any]]:
    """Yield the server-sent events of one connection; events without an id are about the stream itself."""
    with server.stream(server.group_path(group_id, "events"), (("after", str(after)),)) as lines:
        frame: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            if name:
                frame[name] = value.removeprefix(" ")
            elif not line:
                if frame.get("event") == PRUNED_EVENT:
                    raise _failure_in(frame["data"])
                if "id" in frame:
                    yield json.loads(frame["data"])
                frame = {}


def _failure_in(data: str) -> CommandFailed:
    document = json.loads(data)
    problem = decode_problem(document.get("status", 0), document)
    return failure_in(problem) if problem else CommandFailed("the stream ended with an error that is not Rota's")
