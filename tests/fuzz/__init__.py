"""Seeded fuzzers of all that takes bytes from a caller, a peer or a file: `make fuzz MINUTES=10`."""
