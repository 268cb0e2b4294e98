"""The service as real processes: how it starts, how it ends, and what survives when it is killed."""
