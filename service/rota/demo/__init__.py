"""`rota demo`: real processes split real work, lose one of theirs to kill -9, and carry on."""
