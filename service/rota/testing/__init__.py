"""A simulated service for tests: `World(seed)` plays one, `check` says what went wrong. Everything is deterministic."""

from rota.testing.checks import check
from rota.testing.history import History
from rota.testing.profiles import CHURN, FAILOVER, FAULTS, Profile
from rota.testing.world import World

__all__ = ["CHURN", "FAILOVER", "FAULTS", "History", "Profile", "World", "check"]
