"""The simulator: the production runtime under faults from a seed, the checks of its history, and bugs planted in it.

Each replica is `LocalCoordinator` and `RoutedCoordinator` as `rota serve` runs them, on an event loop of its own in
virtual time. Network, database, liveness store and administrators are simulated. The members are shells over the SDK's
state machine, or, in the worlds of `groups`, users' programs over the whole SDK.

    world, violations = run_seed(4711)
    assert not violations
"""
