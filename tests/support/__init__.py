"""Real servers and processes for the tests: Postgres and Valkey from wheels, and our own service."""
