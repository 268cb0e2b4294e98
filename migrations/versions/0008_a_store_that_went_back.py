"""What a replica compares with its memory to notice a store that went back to an earlier state, and the floors that
keep generations and epochs from repeating after that.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

COLUMNS = ("claimed_epoch", "claimed_seq", "timeline", "generation_floor", "epoch_floor")

# A role may be refused one of these functions, and a server that is no Postgres may lack one: then it is unknown.
# The name of the current segment holds the timeline from the moment of a promotion on; the control file is later.
TIMELINE = """
CREATE FUNCTION rota.timeline() RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
        SELECT format('%s/%s/%s', c.system_identifier, substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), d.oid)
        FROM pg_control_system() AS c, pg_database AS d WHERE d.datname = current_database()
    );
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END $$
"""


def schema() -> str | None:
    return "rota" if op.get_context().dialect.name == "postgresql" else None


def upgrade() -> None:
    """With defaults: replicas of the release before this one claim shards without them."""
    for column in (
        sa.Column(
            "claimed_epoch",
            sa.BigInteger(),
            nullable=False,
            server_default="0",
            comment="the epoch that claimed_seq means; an earlier release claims without it",
        ),
        sa.Column(
            "claimed_seq",
            sa.BigInteger(),
            nullable=False,
            server_default="0",
            comment="the journal's last entry when that epoch began",
        ),
        sa.Column("timeline", sa.Text(), comment="of the server at the last renewal; null where it is unknown"),
        sa.Column(
            "generation_floor",
            sa.Integer(),
            nullable=False,
            server_default="0",
            comment="no group of this shard grants this generation or an earlier one",
        ),
        sa.Column(
            "epoch_floor",
            sa.BigInteger(),
            nullable=False,
            server_default="0",
            comment="no claim gets this epoch or an earlier one",
        ),
    ):
        op.add_column("shards", column, schema=schema())
    if schema():
        op.execute(TIMELINE)


def downgrade() -> None:
    if schema():
        op.execute("DROP FUNCTION rota.timeline()")
    with op.batch_alter_table("shards", schema=schema()) as shards:
        for name in reversed(COLUMNS):
            shards.drop_column(name)
