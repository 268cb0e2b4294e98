"""The simulator: the production runtime under faults from a seed, the checks of its history, and bugs planted in it.

Each replica is `LocalCoordinator` and `RoutedCoordinator` as `rota serve` runs them, on an event loop of its own in
virtual time. Members, network, database, liveness store and administrators are simulated. `groups` simulates the SDK.

    world, violations = run_seed(4711)
    assert not violations
"""
