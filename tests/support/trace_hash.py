"""What tells two simulated runs apart."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.simulation.history import History


def trace_hash(history: History) -> str:
    """The same seed gives the same trace: every line of the journal and every answer goes into this."""
    digest = hashlib.sha256()
    for shard_id, lines in sorted(history.journal.items()):
        for line in lines:
            _feed(digest, shard_id, line)
    for call in history.calls:
        _feed(digest, call.number, call.client, call.request, call.sent_ms, call.ret_ms, call.reply, call.revision)
    for hold in history.holds:
        _feed(digest, hold)
    return digest.hexdigest()


def _feed(digest: Any, *values: object) -> None:
    digest.update(repr(values).encode())
