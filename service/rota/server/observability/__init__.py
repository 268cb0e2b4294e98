"""Logs and metrics. They do not depend on the rest of the service; the pure packages do not depend on them."""
