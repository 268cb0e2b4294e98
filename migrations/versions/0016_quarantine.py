"""Which units of work a group's assignments leave out, and which are suspected."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def schema() -> str | None:
    return "rota" if op.get_context().dialect.name == "postgresql" else None


def upgrade() -> None:
    """With a default: replicas of the release before this one write rows without this column."""
    column = sa.Column(
        "quarantine",
        sa.Text(),
        nullable=False,
        server_default="",
        comment="JSON: rule, suspects and quarantined units",
    )
    op.add_column("groups", column, schema=schema())


def downgrade() -> None:
    with op.batch_alter_table("groups", schema=schema()) as groups:
        groups.drop_column("quarantine")
