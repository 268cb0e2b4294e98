"""Defects that one named test finds each, by subject."""

from __future__ import annotations

from tests.simulation.groups.named import calls, commits, programs, stops, storage, topics, ways_out
from tests.simulation.groups.planting import Named, Plants

SUBJECTS: dict[str, Plants] = {
    "ways out": ways_out.PLANTS,
    "calls": calls.PLANTS,
    "commits": commits.PLANTS,
    "stops": stops.PLANTS,
    "topics": topics.PLANTS,
    "storage": storage.PLANTS,
    "programs": programs.PLANTS,
}
ROWS: dict[str, Named] = {name: row for plants in SUBJECTS.values() for name, row in plants.rows.items()}
