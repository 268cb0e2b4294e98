"""API tokens: digests, scopes and ends, never the tokens themselves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def schema() -> str | None:
    return "rota" if op.get_context().dialect.name == "postgresql" else None


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("token_id", sa.Text(), primary_key=True, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False, comment="SHA-256 of the token, in hexadecimal"),
        sa.Column("grants", sa.Text(), nullable=False, comment="its scope: rules, as JSON"),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger()),
        sa.Column("revoked_at_ms", sa.BigInteger()),
        sa.Column("note", sa.Text(), nullable=False),
        schema=schema(),
    )


def downgrade() -> None:
    op.drop_table("tokens", schema=schema())
