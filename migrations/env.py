"""How Alembic runs a migration: on the connection and in the transaction that `rota.storage.migrate` hands it."""

from __future__ import annotations

from typing import Literal

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection

from rota.storage.partitions import PARTITION_PREFIX
from rota.storage.schema import POSTGRES_SCHEMA, metadata_for

NameType = Literal["schema", "table", "column", "index", "unique_constraint", "foreign_key_constraint"]


def is_ours(name: str | None, kind: str, parents: object) -> bool:  # noqa: ARG001 - Alembic's signature
    """Leave out what users keep in the same database, and the journal's partitions, which come and go."""
    if kind == "schema":
        return name == POSTGRES_SCHEMA
    return kind != "table" or not (name or "").startswith(PARTITION_PREFIX)


def run(connection: Connection) -> None:
    on_postgres = connection.dialect.name == "postgresql"
    context.configure(
        connection=connection,
        target_metadata=metadata_for(connection.dialect.name),
        version_table_schema=POSTGRES_SCHEMA if on_postgres else None,
        include_schemas=on_postgres,
        include_name=is_ours if on_postgres else None,
        # SQLite's tables change by being made anew.
        render_as_batch=not on_postgres,
        # Both engines roll DDL back: a migration that fails leaves nothing behind.
        transactional_ddl=True,
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


handed_over: Connection | None = context.config.attributes.get("connection")
if handed_over is None:
    raise CommandError("migrations are run by `rota db upgrade`, which takes the locks that they need")
run(handed_over)
