"""Where a replica answers gRPC, and on which ports it alone answers: workers of one machine share the others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

PORTS = ("own_http_port", "own_grpc_port")


def schema() -> str | None:
    return "rota" if op.get_context().dialect.name == "postgresql" else None


def upgrade() -> None:
    """With defaults: replicas of the release before this one register without them."""
    where = sa.Column(
        "grpc_address", sa.Text(), nullable=False, server_default="", comment="where clients reach it over gRPC"
    )
    op.add_column("replicas", where, schema=schema())
    for name in PORTS:
        port = sa.Column(
            name, sa.Integer(), nullable=False, server_default="0", comment="shared with no worker beside it"
        )
        op.add_column("replicas", port, schema=schema())


def downgrade() -> None:
    with op.batch_alter_table("replicas", schema=schema()) as replicas:
        for name in (*PORTS, "grpc_address"):
            replicas.drop_column(name)
