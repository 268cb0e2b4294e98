"""The liveness check of whole groups, and the defects that it is known to find."""
