"""The pure server core: what a group decides. No clock, no randomness, no logging, no I/O."""
