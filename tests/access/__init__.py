"""Access: which callers a server admits, and for which operations."""
