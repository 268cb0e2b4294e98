"""Until when a group is frozen, and which of its members may leave."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def schema() -> str | None:
    return "rota" if op.get_context().dialect.name == "postgresql" else None


def upgrade() -> None:
    """With defaults: replicas of the release before this one write rows without these columns."""
    columns = (
        sa.Column("frozen_until_ms", sa.BigInteger(), comment="null: not frozen"),
        sa.Column("frozen_reason", sa.Text(), nullable=False, server_default=""),
        sa.Column(
            "leaving",
            sa.Text(),
            nullable=False,
            server_default="",
            comment="JSON: members that may leave, and until when",
        ),
    )
    for column in columns:
        op.add_column("groups", column, schema=schema())


def downgrade() -> None:
    with op.batch_alter_table("groups", schema=schema()) as groups:
        for name in ("leaving", "frozen_reason", "frozen_until_ms"):
            groups.drop_column(name)
