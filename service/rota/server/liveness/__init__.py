"""The members' last heartbeats, shared by the replicas of a store: in Redis or Valkey, and in memory."""
