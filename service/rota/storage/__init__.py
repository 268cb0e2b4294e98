"""Durable state behind `rota.replica.ports.ShardStore`: Postgres and SQLite."""
