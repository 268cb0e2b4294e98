"""Who gets in."""
