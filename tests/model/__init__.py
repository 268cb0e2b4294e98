"""The real core in a tiny world, walked through exhaustively."""
