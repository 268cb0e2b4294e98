"""What replicas publish of their members: the liveness store, and how the owners of shards use it."""
