"""The gRPC API: the contract, the server on a real port, the session stream."""
