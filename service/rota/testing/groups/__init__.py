"""A liveness check for whole groups: real `Consumer`, `WorkerPool`, `ConnectWorker`, `Election` and `Member` objects.

They run against the real core in virtual time, under faults drawn from a seed. After the faults end, every partition
has its holder and every election its term, within one session timeout and 5 s.

    outcome = run_seed(4711)
    assert not outcome.violations
"""

from rota.testing.groups.world import Outcome, run_seed

__all__ = ["Outcome", "run_seed"]
