"""Permissions: rules, tokens, claims and quotas as pure decisions. All I/O is elsewhere."""
