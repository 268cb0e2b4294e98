"""The vocabulary of the group protocol: errors, messages, identifiers, limits. Pure."""
