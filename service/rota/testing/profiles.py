"""What kind of trouble a simulated world makes, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random


@dataclass(frozen=True, slots=True)
class Profile:
    """A world's size and its troubles. An interval of 0 means never; all times are milliseconds.

    Intervals are means, per world. Which of the faults a seed really has is drawn anew for each seed, because
    worlds that have every fault at once never get to the states behind quieter ones.
    """

    name: str
    replicas: int = 3
    shards: int = 4
    groups: int = 2
    slots: int = 4
    """Places for members in each group; the first `static_slots` of them have instance ids."""
    static_slots: int = 1
    safety_ms: int = 14_000
    converge_ms: int = 40_000
    lease_ms: int = 1_000
    late_timer_ms: int = 1_000
    """How late a timer may fire: by the pause of a replica, which has lost its lease where that was longer."""
    session_ms: tuple[int, int] = (1_200, 2_400)
    rebalance_ms: tuple[int, int] = (1_500, 3_500)
    initial_rebalance_delay_ms: int = 250
    churn_every_ms: int = 500
    """A member starts, leaves, dies, is paused, changes its metadata …"""
    admin_every_ms: int = 1_500
    fault_every_ms: int = 1_200
    """A replica crashes or is paused, a network is cut, the store is slow …"""
    loss: float = 0.01
    slow_answers: float = 0.02
    stalled_statements: float = 0.02
    lost_statements: float = 0.01
    late_answers: float = 0.02
    """Of the store, which has run the statement in time."""
    work_every_ms: int = 500
    quiet_ms: int = 0
    """So long nothing fails at first."""


CHURN = Profile(
    "churn",
    slots=5,
    churn_every_ms=300,
    fault_every_ms=9_000,
    loss=0.0,
    slow_answers=0.005,
    stalled_statements=0.0,
    lost_statements=0.0,
    late_answers=0.0,
)
FAULTS = Profile("faults")
FAILOVER = Profile(
    "failover",
    groups=2,
    slots=3,
    session_ms=(9_000, 9_000),
    rebalance_ms=(9_000, 9_000),
    churn_every_ms=0,
    admin_every_ms=3_000,
    fault_every_ms=1_500,
    quiet_ms=4_000,
)
"""Only the coordinators fail: their members, which keep heartbeating, must not notice (L5)."""

PROFILES = {profile.name: profile for profile in (CHURN, FAULTS, FAILOVER)}


def profile_of(seed: int) -> Profile:
    """Which profile a seed runs where none is named: mostly faults."""
    return (FAULTS, CHURN, FAULTS, FAILOVER, FAULTS, CHURN, FAULTS, FAULTS)[seed % 8]


@dataclass(frozen=True, slots=True)
class Parts:
    """Which of production's optional parts a world has."""

    forwards: bool = False
    """Replicas forward calls to each other."""
    liveness: bool = False
    """There is a liveness store."""
    long_sessions: bool = False
    """Members outlive the silence of their owner, and its change."""
    calm: bool = False
    """Nothing fails but what shared sessions are for: owners, members, and links between replicas."""
    rotates: bool = True
    """Clients try another replica after one that does not answer for a shard, as they do behind a load balancer."""
    beside: frozenset[str] = frozenset()
    """Events beside the members' work, by the names in `beside.py` and the modules that extend it."""

    @property
    def side_door(self) -> bool:
        """Users' own transactions commit progress."""
        return "user_transaction" in self.beside


BESIDE = ("exceed_limit", "force_rebalance", "freeze_group", "prune", "step_clock", "user_transaction")
"""Each is in a quarter of the worlds, drawn by itself."""
LONG_SESSION_MS = (6_000, 7_000)


def parts_of(seed: int, profile: Profile) -> Parts:
    """Which parts a seed has: a third of the seeds has none, for faults that meet the parts all replicas have."""
    draws = Random(f"parts/{seed}")
    forwards, liveness = draws.random() < 0.55, draws.random() < 0.45
    is_long = liveness and profile.churn_every_ms > 0 and draws.random() < 0.6
    is_calm = is_long and draws.random() < 0.5
    rotates = forwards or is_long or draws.random() < 0.4
    beside = frozenset() if is_calm else _beside(seed, profile)
    return Parts(forwards or is_long, liveness, is_long, is_calm, rotates, beside)


def _beside(seed: int, profile: Profile) -> frozenset[str]:
    """Where all members keep heartbeating, nothing may start a rebalance (L5), so no operator or freeze does."""
    drawn = frozenset(name for name in BESIDE if Random(f"{name}?{seed}").random() < 0.25)
    return drawn if profile.churn_every_ms else drawn - {"force_rebalance", "freeze_group"}


def with_parts(profile: Profile, parts: Parts) -> Profile:
    """With sessions worth sharing, where members have long ones."""
    if not parts.long_sessions:
        return profile
    churn_ms, fault_ms = (8_000, 0) if parts.calm else (3_000, 2_000)
    return replace(profile, session_ms=LONG_SESSION_MS, churn_every_ms=churn_ms, fault_every_ms=fault_ms)
