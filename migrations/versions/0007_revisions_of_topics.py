"""How often the topics of a namespace have changed, so that the version of a topic or a listing never comes back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def schema() -> str | None:
    return "rota" if op.get_context().dialect.name == "postgresql" else None


def upgrade() -> None:
    """With a default: replicas of the release before this one write topics without it."""
    counted = sa.Column(
        "revision",
        sa.BigInteger(),
        nullable=False,
        server_default="0",
        comment="topics_revisions at its last change",
    )
    op.add_column("topics", counted, schema=schema())
    op.create_table(
        "topics_revisions",
        sa.Column("shard_id", sa.Integer(), primary_key=True, autoincrement=False, nullable=False),
        sa.Column("namespace", sa.Text(collation="C") if schema() else sa.Text(), primary_key=True, nullable=False),
        sa.Column(
            "revision", sa.BigInteger(), nullable=False, comment="how often its topics have changed in this shard"
        ),
        schema=schema(),
    )


def downgrade() -> None:
    op.drop_table("topics_revisions", schema=schema())
    with op.batch_alter_table("topics", schema=schema()) as topics:
        topics.drop_column("revision")
