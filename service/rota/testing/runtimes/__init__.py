"""The production runtime in a simulated world: `LocalCoordinator` and `RoutedCoordinator` as `rota serve` runs them.

The world is the simulator's (`rota.testing.world`): its members, network, database, faults and rules. Only the replicas
are others: each is the production code on an event loop of its own, in virtual time, so that the order of callbacks,
cancellation, group commit, leases, hand-overs, forwarding and the shared liveness store are played, too.

    world, violations = run_seed(4711)
    assert not violations
"""

from rota.testing.runtimes.tally import run_seed, run_seeds
from rota.testing.runtimes.world import RuntimeWorld

__all__ = ["RuntimeWorld", "run_seed", "run_seeds"]
