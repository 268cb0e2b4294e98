"""Sessions of the console: digests of cookies, and tokens that only those cookies open."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def schema() -> str | None:
    return "rota" if op.get_context().dialect.name == "postgresql" else None


def upgrade() -> None:
    op.create_table(
        "console_sessions",
        sa.Column("digest", sa.Text(), primary_key=True, nullable=False, comment="SHA-256 of the cookie, in hex"),
        sa.Column("sealed", sa.Text(), nullable=False, comment="the token, encrypted with a key from the cookie"),
        sa.Column("expires_at_ms", sa.BigInteger(), nullable=False),
        schema=schema(),
    )


def downgrade() -> None:
    op.drop_table("console_sessions", schema=schema())
