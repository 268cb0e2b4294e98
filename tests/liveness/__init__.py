"""What replicas tell each other of their members: the store, and what the owners of shards make of it."""
