"""Programs of users, as the README shows them, for tests and benches that end them by signals."""
