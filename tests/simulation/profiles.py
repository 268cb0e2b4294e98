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
    shards: int = 3
    groups: int = 2
    slots: int = 4
    """Places for members in each group; the first `static_slots` of them have instance ids."""
    static_slots: int = 1
    safety_ms: int = 10_000
    converge_ms: int = 40_000
    lease_ms: int = 1_000
    late_timer_ms: int = 1_000
    """How late a timer may fire: by the pause of a replica, which has lost its lease where that was longer."""
    session_ms: tuple[int, int] = (1_200, 2_400)
    rebalance_ms: tuple[int, int] = (1_500, 3_500)
    initial_rebalance_delay_ms: int = 250
    churn_every_ms: int = 300
    """A member starts, leaves, dies, is paused, changes its metadata …"""
    admin_every_ms: int = 1_000
    fault_every_ms: int = 1_000
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
    churn_every_ms=200,
    fault_every_ms=5_000,
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
    admin_every_ms=2_000,
    fault_every_ms=900,
    safety_ms=14_000,
    quiet_ms=4_000,
)
"""Only the coordinators fail: their members, which keep heartbeating, must not notice (L5)."""

PROFILES = {profile.name: profile for profile in (CHURN, FAULTS, FAILOVER)}


def profile_of(seed: int, base: Profile | None = None) -> Profile:
    """The profile of a seed, with a size of its own. Where no `base` is named, the seed draws it: mostly faults."""
    kind = base or (FAULTS, CHURN, FAULTS, FAILOVER, FAULTS, CHURN, FAULTS, FAULTS)[seed % 8]
    draws = Random(f"size/{seed}")
    return replace(kind, replicas=draws.choice((1, 1, 2, 2, 3, 3, 3, 4)), shards=draws.choice((1, 2, 3)))


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
    side_door: bool = False
    """The store is one in which users' own transactions may commit progress."""
    steals: bool = False
    """The store is an embedded one: its only process takes all shards at once."""
    interrupted: bool = False
    """Messages may arrive between any two turns of an event loop, instead of only when it has nothing to do."""
    sluggish: bool = False
    """A transaction takes its time, so several shards decide what goes into the next one."""
    beside: frozenset[str] = frozenset()
    """Events beside the members' work, by the names in `beside.py` and the modules that extend it."""


BESIDE = ("exceed_limit", "force_rebalance", "freeze_group", "prune", "step_clock", "user_transaction")
"""Each is in a quarter of the worlds, drawn by itself."""
LONG_SESSION_MS = (6_000, 7_000)
LONG_SAFETY_MS = 15_000
"""How long faults last where sessions are long."""


def parts_of(seed: int, profile: Profile) -> Parts:
    """Which parts a seed has."""
    draws = Random(f"parts/{seed}")
    is_alone = profile.replicas == 1
    steals, side_door = is_alone and draws.random() < 0.5, not is_alone and draws.random() < 0.7
    forwards, liveness = draws.random() < 0.75, not is_alone and draws.random() < 0.5
    is_long = liveness and profile.churn_every_ms > 0 and draws.random() < 0.6
    is_calm = is_long and draws.random() < 0.4
    forwards = forwards or is_long
    return Parts(
        forwards=forwards,
        liveness=liveness,
        long_sessions=is_long,
        calm=is_calm,
        rotates=forwards or draws.random() < 0.4,
        side_door=side_door,
        steals=steals,
        interrupted=draws.random() < 0.25,
        sluggish=draws.random() < 0.3,
        beside=frozenset() if is_calm else _beside(seed, profile, side_door=side_door),
    )


def _beside(seed: int, profile: Profile, *, side_door: bool) -> frozenset[str]:
    """Where all members keep heartbeating, nothing may start a rebalance (L5), so no operator or freeze does."""
    drawn = frozenset(name for name in BESIDE if Random(f"{name}?{seed}").random() < 0.25)
    never = set() if profile.churn_every_ms else {"force_rebalance", "freeze_group"}
    return drawn - never - (set() if side_door else {"user_transaction"})


def with_parts(profile: Profile, parts: Parts) -> Profile:
    """With sessions worth sharing, where members have long ones."""
    if not parts.long_sessions:
        return profile
    churn_ms, fault_ms = (8_000, 0) if parts.calm else (3_000, 2_000)
    return replace(
        profile,
        session_ms=LONG_SESSION_MS,
        churn_every_ms=churn_ms,
        fault_every_ms=fault_ms,
        safety_ms=LONG_SAFETY_MS,
    )
