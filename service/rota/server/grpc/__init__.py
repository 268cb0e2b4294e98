"""The gRPC API: unary calls, the watch of a group, and the session stream of a process."""
