"""The cause of a group's last rebalance as a code, beside its sentence."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def schema() -> str | None:
    return "rota" if op.get_context().dialect.name == "postgresql" else None


def upgrade() -> None:
    """With a default: replicas of the release before this one write rows without this column."""
    op.add_column(
        "groups",
        sa.Column(
            "rebalance_cause",
            sa.Text(),
            nullable=False,
            server_default="",
            comment="a code, and a checksum of its rebalance; empty: none",
        ),
        schema=schema(),
    )


def downgrade() -> None:
    with op.batch_alter_table("groups", schema=schema()) as groups:
        groups.drop_column("rebalance_cause")
