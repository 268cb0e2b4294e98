"""The rules of the coordinator, of a replica, of a member and of access: pure, without I/O, clock or randomness."""
