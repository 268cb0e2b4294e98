"""Who was heard when, shared by the replicas of a store: in Redis or Valkey, and the twin in memory."""
