"""A liveness check for whole groups: real consumers, pools, workers, elections, members and permits of the SDK.

They run against the real core in virtual time, under faults drawn from a seed. After the faults end, every partition
has its holder, every election its term and every permit a holder, within one session timeout and 5 s.

    outcome = run_seed(4711)
    assert not outcome.violations
"""

from tests.simulation.groups.world import Outcome, run_seed

__all__ = ["Outcome", "run_seed"]
