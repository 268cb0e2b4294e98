"""Durable state behind `rota.core.replica.ports.ShardStore`: Postgres and SQLite."""
