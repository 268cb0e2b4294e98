"""A commit may name its own retention, over every transport and in users' transactions; the offset's row has its end.

A commit that names none takes the retention of the one before away, so the function for users' transactions writes the
column, too. Replicas of the release before this one leave it alone: for as long as they run beside new ones, an offset
that they commit keeps the retention that an earlier commit named.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

SEARCH_PATH = "SET search_path = pg_catalog, pg_temp"

WRITE_OFFSETS = f"""
CREATE OR REPLACE FUNCTION rota.write_offsets(
    of_shard integer, of_namespace text, of_group text, of_member text, given jsonb
)
RETURNS void LANGUAGE sql {SEARCH_PATH} AS $$
    WITH last_given AS (
        SELECT DISTINCT ON (item->>'topic', (item->>'partition')::integer) item,
            (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
        FROM jsonb_array_elements(given) WITH ORDINALITY AS each (item, place)
        ORDER BY item->>'topic', (item->>'partition')::integer, place DESC
    ), written AS (
        INSERT INTO rota.offsets (
            shard_id, namespace, group_id, topic, partition, "offset", leader_epoch, metadata, committed_at_ms,
            expires_at_ms
        )
        SELECT of_shard, of_namespace, of_group, item->>'topic', (item->>'partition')::integer,
            (item->>'offset')::bigint, (item->>'leader_epoch')::integer, coalesce(item->>'metadata', ''),
            now_ms, now_ms + (item->>'retention_time_ms')::bigint
        FROM last_given ORDER BY item->>'topic', (item->>'partition')::integer
        ON CONFLICT (shard_id, namespace, group_id, topic, partition) DO UPDATE SET
            "offset" = excluded."offset", leader_epoch = excluded.leader_epoch, metadata = excluded.metadata,
            committed_at_ms = excluded.committed_at_ms, expires_at_ms = excluded.expires_at_ms
        RETURNING offsets.topic, offsets.partition
    )
    INSERT INTO rota.side_commits (shard_id, namespace, group_id, topic, partition, member_id)
    SELECT of_shard, of_namespace, of_group, topic, partition, of_member FROM written
$$
"""

COMMIT_OFFSETS = f"""
CREATE OR REPLACE FUNCTION rota.commit_offsets(
    namespace text, group_id text, generation_id integer, member_id text, offsets jsonb
)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER {SEARCH_PATH} AS $$
BEGIN
    PERFORM rota.check_role($1);
    IF $4 IS NULL OR jsonb_typeof($5) IS DISTINCT FROM 'array' OR jsonb_array_length($5) = 0 THEN
        RAISE EXCEPTION 'INVALID_REQUEST: member_id and an array of offsets are required' USING ERRCODE = 'RT005';
    END IF;
    IF EXISTS (
        SELECT FROM jsonb_array_elements($5) AS item
        WHERE coalesce(item->>'topic', '') !~ '^[A-Za-z0-9._:-]{{1,249}}$'
            OR coalesce(item->>'partition', '') !~ '^[0-9]{{1,9}}$'
            OR coalesce(item->>'offset', '') !~ '^[0-9]{{1,18}}$'
            OR coalesce(item->>'leader_epoch', '0') !~ '^[0-9]{{1,9}}$' OR length(item->>'metadata') > 4096
            OR coalesce(item->>'retention_time_ms', '1') !~ '^[1-9][0-9]{{0,11}}$'
    ) THEN
        RAISE EXCEPTION 'INVALID_REQUEST: an offset needs topic, partition and offset' USING ERRCODE = 'RT005',
            DETAIL = 'It may have a leader_epoch, metadata of at most 4096 characters, a retention_time_ms above 0.';
    END IF;
    PERFORM rota.check_fence($1, $2, $3, $4, true);
    INSERT INTO rota.fence_checks (namespace, group_id, generation_id, member_id, offsets) VALUES ($1, $2, $3, $4, $5);
END $$
"""


def on_postgres() -> bool:
    return op.get_context().dialect.name == "postgresql"


def schema() -> str | None:
    return "rota" if on_postgres() else None


def upgrade() -> None:
    expires_at_ms = sa.Column("expires_at_ms", sa.BigInteger(), comment="null: the retention of the server counts")
    op.add_column("offsets", expires_at_ms, schema=schema())
    if on_postgres():
        op.execute(WRITE_OFFSETS)
        op.execute(COMMIT_OFFSETS)


def downgrade() -> None:
    if on_postgres():
        scripts = op.get_context().environment_context.script
        first, granted = scripts.get_revision("0002").module, scripts.get_revision("0011").module
        op.execute(first.WRITE_OFFSETS.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
        op.execute(granted.COMMIT_OFFSETS)
    with op.batch_alter_table("offsets", schema=schema()) as offsets:
        offsets.drop_column("expires_at_ms")
