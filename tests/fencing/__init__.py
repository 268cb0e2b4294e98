"""Fences: what a stale owner can still do, and must not."""
