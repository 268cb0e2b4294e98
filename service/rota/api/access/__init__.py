"""The guard in front of the coordinator: one for all transports, with one table of permissions."""
