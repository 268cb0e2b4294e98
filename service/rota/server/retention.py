"""Retention of the journal: the server deletes old lines, and counts the remaining ones."""

from __future__ import annotations

import asyncio
import logging

from rota.core.replica.ports import StoreRefused, StoreUnavailable
from rota.server.observability.metrics import Metrics
from rota.storage.pruning import prune
from rota.storage.store import SqlStore

COUNT_INTERVAL_SECONDS = 60.0

_log = logging.getLogger(__name__)
_CHANGE = "--journal-keep-days DAYS or ROTA_JOURNAL_KEEP_DAYS=DAYS; 0 keeps all lines"


def note_retention(keep_days: int, first_after_s: float) -> None:
    """Log at start, hours before the first deletion, which lines will be deleted and how to change that."""
    if keep_days:
        first = {"first_deletion_after_s": int(first_after_s)}
        _log.info("old lines of the journal are deleted", extra={"keep_days": keep_days, **first, "change": _CHANGE})
    else:
        _log.info("this server deletes no line of the journal", extra={"keep_days": 0, "change": _CHANGE})


async def delete_old_lines(store_url: str, keep_days: int) -> None:
    """Delete the lines that `rota journal prune` would delete. A failure is logged: the next upkeep tries again."""
    if not keep_days:
        return
    try:
        done = await prune(store_url, keep_days)
    except (StoreUnavailable, StoreRefused) as error:
        _log.warning("old lines of the journal were not deleted", extra={"error": str(error)})
        return
    if done.lines:
        _log.info("old lines of the journal were deleted", extra={"lines": done.lines, "keep_days": keep_days})
    if done.held_by:
        _log.warning(
            "old lines of the journal are kept until these readers have read them; see `rota journal readers`",
            extra={"readers": list(done.held_by), "keep_days": keep_days},
        )


async def count_lines(store: SqlStore, metrics: Metrics) -> None:
    """Count the journal's lines once a minute. If the store does not answer, the last count remains."""
    while True:
        try:
            metrics.journal_counted(await store.count_lines())
        except StoreUnavailable as error:
            _log.debug("the journal's lines were not counted", extra={"error": str(error)})
        await asyncio.sleep(COUNT_INTERVAL_SECONDS)
