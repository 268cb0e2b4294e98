"""Synthetic journals of fleets: the real core in days of virtual time, for tests, demos and benches."""
