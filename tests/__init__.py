"""The tests, fast tiers first: unit, conformance, sim, contracts, http, processes."""
