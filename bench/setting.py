"""Where benches' servers listen, and what all members say. Imports nothing: the process of a leader is to be small."""

from __future__ import annotations

HOST = "127.0.0.1"
NAMESPACE = "bench"
WAIT_MS = 50_000
