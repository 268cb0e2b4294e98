"""The fence in users' transactions refuses generations up to the shard's floor, also before an owner has applied it.

After a restore the rows name a generation that was over long ago. Its holder must not pass in the time until a replica
has loaded the shard.
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

SIGNATURE = "(text, text, integer, text, boolean)"
SEARCH_PATH = "SET search_path = pg_catalog, pg_temp"

CHECK_FENCE = f"""
CREATE FUNCTION rota.check_fence(
    of_namespace text, of_group text, of_generation integer, of_member text, commits boolean
)
RETURNS void LANGUAGE plpgsql {SEARCH_PATH} AS $$
DECLARE
    highest_refused integer;
BEGIN
    SELECT s.generation_floor INTO highest_refused
    FROM rota.groups AS g JOIN rota.shards AS s USING (shard_id)
    WHERE g.namespace = of_namespace AND g.group_id = of_group AND of_generation <= s.generation_floor;
    IF FOUND THEN
        RAISE EXCEPTION 'ILLEGAL_GENERATION: % is not the current generation of group %', of_generation, of_group
            USING ERRCODE = 'RT001',
                DETAIL = format('The store went back to an earlier state: all up to %s are over.', highest_refused);
    END IF;
    PERFORM rota.check_fence_in_rows(of_namespace, of_group, of_generation, of_member, commits);
END $$
"""


def on_postgres() -> bool:
    return op.get_context().dialect.name == "postgresql"


def upgrade() -> None:
    """Beside the function that there is: what calls it finds the new one by its name."""
    if on_postgres():
        op.execute(f"ALTER FUNCTION rota.check_fence{SIGNATURE} RENAME TO check_fence_in_rows")
        op.execute(CHECK_FENCE)
        op.execute(f"REVOKE ALL ON FUNCTION rota.check_fence{SIGNATURE} FROM PUBLIC")


def downgrade() -> None:
    if on_postgres():
        op.execute(f"DROP FUNCTION rota.check_fence{SIGNATURE}")
        op.execute(f"ALTER FUNCTION rota.check_fence_in_rows{SIGNATURE} RENAME TO check_fence")
