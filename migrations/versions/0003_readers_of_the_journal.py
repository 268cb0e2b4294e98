"""Readers of the journal with their positions, its pruned part, a role that only reads, and quick payloads."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

READER = "rota_reader"
READ_BY_IT = ("store", "shards", "group_events", "topics", "journal_readers", "alembic_version")


def on_postgres() -> bool:
    return op.get_context().dialect.name == "postgresql"


def schema() -> str | None:
    return "rota" if on_postgres() else None


def upgrade() -> None:
    op.create_table(
        "journal_readers",
        sa.Column("reader", sa.Text(), primary_key=True, nullable=False),
        sa.Column("incarnation", sa.Text(), nullable=False, comment="the journal that the positions mean"),
        sa.Column("positions", sa.Text(), nullable=False, comment='{"shard id": last sequence number read}, as JSON'),
        sa.Column("updated_at_ms", sa.BigInteger(), nullable=False, comment="by this store's clock"),
        schema=schema(),
    )
    op.add_column(
        "shards",
        sa.Column(
            "first_seq",
            sa.BigInteger(),
            nullable=False,
            server_default="1",
            comment="the journal's first entry of this shard that was not pruned",
        ),
        schema=schema(),
    )
    if on_postgres():
        # A reader of a whole journal spends a quarter of its time on making text of jsonb; no SQL reads its fields.
        op.execute("ALTER TABLE rota.group_events ALTER COLUMN payload TYPE TEXT USING payload::text")
        create_reader()


def create_reader() -> None:
    """Make the role if we may, and give it what it needs. It is the whole cluster's, so it may be there already."""
    op.execute(
        f"""
        DO $$ BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
                CREATE ROLE {READER} NOLOGIN;
            END IF;
        EXCEPTION
            WHEN insufficient_privilege THEN RAISE NOTICE 'no right to create the role {READER}';
            WHEN duplicate_object OR unique_violation THEN NULL;
        END $$
        """
    )
    tables = ", ".join(f"rota.{table}" for table in READ_BY_IT)
    op.execute(
        f"""
        DO $$ BEGIN
            IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
                GRANT USAGE ON SCHEMA rota TO {READER};
                GRANT SELECT ON {tables} TO {READER};
                GRANT INSERT, UPDATE ON rota.journal_readers TO {READER};
            END IF;
        END $$
        """
    )


def downgrade() -> None:
    if on_postgres():
        op.execute(
            f"""
            DO $$ BEGIN
                IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
                    REVOKE ALL ON ALL TABLES IN SCHEMA rota FROM {READER};
                    REVOKE USAGE ON SCHEMA rota FROM {READER};
                END IF;
            END $$
            """
        )
        op.execute("ALTER TABLE rota.group_events ALTER COLUMN payload TYPE JSONB USING payload::jsonb")
    with op.batch_alter_table("shards", schema=schema()) as shards:
        shards.drop_column("first_seq")
    op.drop_table("journal_readers", schema=schema())
