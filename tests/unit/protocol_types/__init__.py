"""Tests of the protocol types."""
