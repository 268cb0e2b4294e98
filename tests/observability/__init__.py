"""A server's own telemetry: metrics, and the events that they count."""
