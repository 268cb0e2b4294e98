"""Replicas among themselves: forwarded requests over one gRPC channel a peer. Not a public interface."""
