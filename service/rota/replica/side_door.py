"""Offsets that users' own transactions commit past the shard's memory (ADR 15), and when a replica takes them in."""

from __future__ import annotations

from rota.protocol.messages import DeleteGroup, DeleteOffsets, FetchOffsets, Request

TAKE_IN_INTERVAL_MS = 2_000
"""How often the owner takes them in while no request needs them."""


def needs_side_commits(request: Request) -> bool:
    """Whether the shard takes in those offsets before it decides this request.

    It would otherwise show progress that is out of date, or delete progress without its line in the journal.
    """
    return isinstance(request, FetchOffsets | DeleteOffsets | DeleteGroup)
