"""The production runtime in simulated worlds."""
