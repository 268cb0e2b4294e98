"""Planted bugs: each breaks one rule on purpose, so that the checks can show that they would notice.

A mutant is a context manager that patches the core, a replica's rules, the runtime or the twin of the store while it is
open.
"""

from __future__ import annotations

from tests.simulation import (
    beside_mutants,
    group_mutants,
    maintenance_mutants,
    membership_mutants,
    replica_mutants,
    runtime_mutants,
)
from tests.simulation.registry import MUTANTS

__all__ = [
    "MUTANTS",
    "beside_mutants",
    "group_mutants",
    "maintenance_mutants",
    "membership_mutants",
    "replica_mutants",
    "runtime_mutants",
]  # The modules register theirs.
