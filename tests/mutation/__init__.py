"""Mutants that a tool makes of the cores: `make mutants` plays them against the quick tests (ADR 41)."""
