"""The groups of a fleet: sizes, strategies, rates of deployments and faults, all drawn from one seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky")
SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Parameters of one group. Intervals are means; 0 means never."""

    group_id: str
    strategy: str
    """One of `STRATEGIES`; empty for a group that only elects a leader."""
    members: int
    partitions: int
    static: bool
    session_timeout_ms: int
    commit_every_ms: int
    deploy_every_ms: int
    crash_every_ms: int
    pause_every_ms: int
    """A member is silent for longer than its session, and continues afterwards."""
    scale_every_ms: int
    """An autoscaler stops a member and starts it again: some groups flap."""


def draw_group(number: int, seed: int) -> GroupPlan:
    """Draw the parameters of a group. The same number and seed give the same group."""
    rng = Random(f"{seed}/{number}")
    elects = rng.random() < 0.15
    members = rng.choice((2, 2, 3)) if elects else rng.choice((2, 3, 3, 4, 5, 6, 8, 12))
    flaps = rng.random() < 0.06
    frail = rng.random() < 0.15
    return GroupPlan(
        group_id=f"{rng.choice(_ELECTED if elects else _NAMES)}-{number}",
        strategy="" if elects else rng.choice(STRATEGIES),
        members=members,
        partitions=members * rng.choice((1, 2, 4, 6)) + rng.choice((0, 0, 1)),
        static=rng.random() < 0.3,
        session_timeout_ms=rng.choice((10, 30, 45, 45, 60, 120)) * SECOND_MS,
        commit_every_ms=0 if elects else rng.choice((10, 20, 30, 60, 120)) * SECOND_MS,
        deploy_every_ms=rng.choice((12, 24, 48)) * HOUR_MS,
        crash_every_ms=rng.choice((2, 6) if frail else (48, 96)) * HOUR_MS,
        pause_every_ms=rng.choice((1, 3) if frail else (0, 72)) * HOUR_MS,
        scale_every_ms=rng.choice((4, 10)) * MINUTE_MS if flaps else 0,
    )


_NAMES = (
    "indexers",
    "mailer",
    "billing",
    "search-sync",
    "thumbnails",
    "fraud",
    "export",
    "ledger",
    "audit-log",
    "feed",
)
_ELECTED = ("scheduler", "migrator", "cron", "compactor")
