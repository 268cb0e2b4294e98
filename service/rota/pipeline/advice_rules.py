"""What must hold in each row of advice, whatever the history: a row that breaks it cannot be true."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rota.pipeline.tables import GOLD

Rule = Callable[[Mapping[str, Any]], bool]
"""Whether a row, by the names of its columns, keeps it."""


def _not_negative(column: str) -> Rule:
    return lambda row: row[column] >= 0


_ANY_ASSIGNMENT: dict[str, Rule] = {
    "moves >= least_moves": lambda row: row["moves"] >= row["least_moves"],
    "least_moves >= 0": lambda row: row["least_moves"] >= 0,
    "moves >= forced_moves": lambda row: row["moves"] >= row["forced_moves"] >= 0,
    "units >= imbalance": lambda row: row["units"] >= row["imbalance"] >= 0,
}
RULES: dict[str, dict[str, Rule]] = {
    "assignments": {
        **_ANY_ASSIGNMENT,
        "units >= moves + added": lambda row: row["units"] >= row["moves"] + row["added"],
        "unassigned >= in_motion": lambda row: row["unassigned"] >= row["in_motion"] >= 0,
        "round >= 1": lambda row: row["round"] >= 1,
    },
    "timeout_advice": {
        "no false expiries where no silence was longer": lambda row: _agrees(
            row["false_expiries_per_day"], row["session_timeout_ms"], row["longest_gap_ms"]
        ),
        "none with the recommended timeout where no silence was longer": lambda row: (
            row["recommended_ms"] is None
            or _agrees(row["recommended_false_per_day"], row["recommended_ms"], row["longest_gap_ms"])
        ),
        "a longer timeout has no more false expiries": lambda row: (
            row["recommended_ms"] is None
            or (row["recommended_ms"] >= row["session_timeout_ms"])
            <= (row["recommended_false_per_day"] <= row["false_expiries_per_day"])
        ),
        "longest_gap_ms >= longest_kept_ms": lambda row: row["longest_gap_ms"] >= row["longest_kept_ms"] >= 0,
    },
    "advisor": {
        **_ANY_ASSIGNMENT,
        "paused_units >= moves": lambda row: row["paused_units"] >= row["moves"],
        "units of all rounds >= paused_units": lambda row: row["units"] * max(row["rounds"], 1) >= row["paused_units"],
    },
    "what_ifs": {
        f"{name} >= 0": _not_negative(name)
        for name in ("rebalances", "join_phases", "moves", "paused_unit_ms", "waiting_unit_ms", "false_expiries")
    },
}
"""By table."""
_NAMES = {table: [column.name for column in GOLD[table].columns] for table in RULES}


def _agrees(false_per_day: float, timeout_ms: int, longest_gap_ms: int) -> bool:
    """A timeout has false expiries if, and only if, a silence was longer than it."""
    return bool((false_per_day > 0) == (longest_gap_ms > timeout_ms))


def broken_rules(table: str, values: tuple[Any, ...]) -> Iterator[str]:
    """The rules that a row of this table breaks, each with the row; none for a row that could not be computed."""
    if table not in RULES:
        return
    row = dict(zip(_NAMES[table], values, strict=True))
    if row.get("units", 0) is None:
        return
    for rule, keeps in RULES[table].items():
        if not keeps(row):
            said = ", ".join(f"{name} {row[name]}" for name in _NAMES[table] if isinstance(row[name], int | float))
            yield f"{table}: {rule} does not hold: {said}"
