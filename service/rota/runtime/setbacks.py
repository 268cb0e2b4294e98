"""What the log says when the store went back to an earlier state."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rota.replica.going_back import LostFact, Setback

logger = logging.getLogger(__name__)

MOST_LINES = 200
"""How many lost facts are named; the rest is counted."""


def report_setbacks(setbacks: Sequence[Setback]) -> None:
    """One line for each shard: what this replica knew of it, and what the store says now."""
    for setback in setbacks:
        known, found = setback.known, setback.found
        logger.error(
            "the store went back to an earlier state",
            extra={
                "shard_id": setback.shard_id,
                "known_epoch": known.epoch,
                "known_owner": known.replica_id,
                "known_seq": known.last_seq,
                "found_epoch": found.epoch,
                "found_owner": found.replica_id,
                "found_seq": found.last_seq,
            },
        )


def report_lost(facts: Sequence[LostFact]) -> None:
    """One line for each lost generation and each lost commit. Some may never have been acknowledged."""
    for fact in facts[:MOST_LINES]:
        logger.warning("the store has lost a fact", extra=fact._asdict())
    if len(facts) > MOST_LINES:
        logger.warning("the store has lost more facts", extra={"facts": len(facts) - MOST_LINES})
