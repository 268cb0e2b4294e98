"""Journals of fleets that never were: the real core through days of virtual time, for tests, demos and benches."""
