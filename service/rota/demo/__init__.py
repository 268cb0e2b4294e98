"""`rota demo`: real processes share real work, lose one to kill -9, and continue."""
