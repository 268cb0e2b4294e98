"""The HTTP transport (protocol.md §7)."""
