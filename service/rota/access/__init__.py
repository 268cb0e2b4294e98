"""Who may do what: rules, tokens, claims and quotas as pure decisions. What listens, reads and fetches is elsewhere."""
