"""Tests of the assignors beyond the conformance cases."""
