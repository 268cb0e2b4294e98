"""The transports: they decode, call the coordinator, encode. No decisions, no SQL."""
