"""The address of servers, and values that all members send. Imports nothing: the process of a leader is to be small."""

from __future__ import annotations

HOST = "127.0.0.1"
NAMESPACE = "bench"
WAIT_MS = 50_000
