"""Logs and metrics. Knows nothing of the rest of the service; the pure packages know nothing of it."""
