"""What a fleet does to the service through the proxy that stands in front of it."""
