"""The counts of the last run: `measured.json`, which `make mutants` writes and `table.py` shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

MEASURED = Path(__file__).with_name("measured.json")


def percent_found(counts: Mapping[str, int]) -> float:
    """How many of the mutants that are left to the tests the tests find."""
    decided = counts["tests"] + counts["survived"]
    return 100 * counts["tests"] / decided if decided else 100.0
