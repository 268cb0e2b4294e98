"""The composition root: settings, wiring, and the life of a server process from start to drain."""
