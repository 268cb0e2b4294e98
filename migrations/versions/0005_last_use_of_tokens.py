"""When API tokens were last used, so that those nobody needs any more are found."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def schema() -> str | None:
    return "rota" if op.get_context().dialect.name == "postgresql" else None


def upgrade() -> None:
    op.add_column(
        "tokens",
        sa.Column("last_used_at_ms", sa.BigInteger(), comment="give or take minutes, by the clock of a server"),
        schema=schema(),
    )


def downgrade() -> None:
    with op.batch_alter_table("tokens", schema=schema()) as tokens:
        tokens.drop_column("last_used_at_ms")
