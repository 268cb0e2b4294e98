"""Progress says which topic it is of, and offsets have 63 bits, as a partition has 31, in users' transactions, too.

A topic that was deleted keeps a row with 0 partitions, in every shard. Its id tells the topics of one name apart. A
commit that names an id is refused after the topic was deleted (ADR 107).
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

SEARCH_PATH = "SET search_path = pg_catalog, pg_temp"

IS_WHOLE = f"""
CREATE FUNCTION rota.is_whole(given text, lowest numeric, highest numeric) RETURNS boolean
LANGUAGE sql IMMUTABLE {SEARCH_PATH} AS $$
    SELECT CASE WHEN given ~ '^(0|[1-9][0-9]{{0,18}})$' THEN given::numeric BETWEEN lowest AND highest ELSE false END
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
            OR NOT rota.is_whole(item->>'partition', 0, 2147483647)
            OR NOT rota.is_whole(item->>'offset', 0, 9223372036854775807)
            OR NOT rota.is_whole(coalesce(item->>'leader_epoch', '0'), 0, 2147483647)
            OR length(item->>'metadata') > 4096
            OR NOT rota.is_whole(coalesce(item->>'retention_time_ms', '1'), 1, 3162240000000)
            OR NOT rota.is_whole(coalesce(item->>'topic_id', '0'), 0, 9223372036854775807)
    ) THEN
        RAISE EXCEPTION 'INVALID_REQUEST: an offset needs topic, partition, and offset from 0 to 9223372036854775807'
            USING ERRCODE = 'RT005',
                DETAIL = 'It may have a leader_epoch, metadata of at most 4096 characters, a retention_time_ms above 0 '
                    'and the topic_id of the fetched progress.';
    END IF;
    PERFORM rota.check_fence($1, $2, $3, $4, true);
    INSERT INTO rota.fence_checks (namespace, group_id, generation_id, member_id, offsets) VALUES ($1, $2, $3, $4, $5);
END $$
"""

# The caller holds the gate of the shard, which the owner closes while it records the deletion of a topic.
WRITE_OFFSETS = f"""
CREATE OR REPLACE FUNCTION rota.write_offsets(
    of_shard integer, of_namespace text, of_group text, of_member text, given jsonb
)
RETURNS void LANGUAGE plpgsql {SEARCH_PATH} AS $$
DECLARE
    deleted text;
BEGIN
    SELECT item->>'topic' INTO deleted FROM jsonb_array_elements(given) AS item
    WHERE (item->>'topic_id')::bigint <> rota.topic_id(of_shard, of_namespace, item->>'topic');
    IF FOUND THEN
        RAISE EXCEPTION 'UNKNOWN_TOPIC: topic % was deleted since its progress was fetched', deleted
            USING ERRCODE = 'RT008';
    END IF;
    WITH last_given AS (
        SELECT DISTINCT ON (item->>'topic', (item->>'partition')::integer) item,
            (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
        FROM jsonb_array_elements(given) WITH ORDINALITY AS each (item, place)
        ORDER BY item->>'topic', (item->>'partition')::integer, place DESC
    ), written AS (
        INSERT INTO rota.offsets (
            shard_id, namespace, group_id, topic, partition, "offset", leader_epoch, metadata, committed_at_ms,
            expires_at_ms, topic_id
        )
        SELECT of_shard, of_namespace, of_group, item->>'topic', (item->>'partition')::integer,
            (item->>'offset')::bigint, (item->>'leader_epoch')::integer, coalesce(item->>'metadata', ''),
            now_ms, now_ms + (item->>'retention_time_ms')::bigint,
            rota.topic_id(of_shard, of_namespace, item->>'topic')
        FROM last_given ORDER BY item->>'topic', (item->>'partition')::integer
        ON CONFLICT (shard_id, namespace, group_id, topic, partition) DO UPDATE SET
            "offset" = excluded."offset", leader_epoch = excluded.leader_epoch, metadata = excluded.metadata,
            committed_at_ms = excluded.committed_at_ms, expires_at_ms = excluded.expires_at_ms,
            topic_id = excluded.topic_id
        RETURNING offsets.topic, offsets.partition
    )
    INSERT INTO rota.side_commits (shard_id, namespace, group_id, topic, partition, member_id)
    SELECT of_shard, of_namespace, of_group, topic, partition, of_member FROM written;
END $$
"""

TOPIC_ID = f"""
CREATE FUNCTION rota.topic_id(of_shard integer, of_namespace text, of_topic text) RETURNS bigint
LANGUAGE sql STABLE {SEARCH_PATH} AS $$
    SELECT coalesce((
        SELECT t.topic_id FROM rota.topics AS t
        WHERE t.shard_id = of_shard AND t.namespace = of_namespace AND t.topic = of_topic
    ), 0)
$$
"""

COMMITTED_OFFSET = f"""
CREATE OR REPLACE FUNCTION rota.committed_offset(namespace text, group_id text, topic text, partition integer)
RETURNS bigint LANGUAGE plpgsql STABLE SECURITY DEFINER {SEARCH_PATH} AS $$
BEGIN
    PERFORM rota.check_role($1);
    RETURN coalesce((
        SELECT o."offset" FROM rota.groups AS g JOIN rota.offsets AS o USING (shard_id, namespace, group_id)
        WHERE g.namespace = $1 AND g.group_id = $2 AND o.topic = $3 AND o.partition = $4
            AND o.topic_id = rota.topic_id(g.shard_id, $1, $3)
    ), -1);
END $$
"""

NEW = {
    "rota.is_whole(text, numeric, numeric)": IS_WHOLE,
    "rota.topic_id(integer, text, text)": TOPIC_ID,
}


def on_postgres() -> bool:
    return op.get_context().dialect.name == "postgresql"


def schema() -> str | None:
    return "rota" if on_postgres() else None


def upgrade() -> None:
    """With defaults: replicas of the release before this one write rows without these columns."""
    comments = {"topics": "topics_revisions at its last deletion", "offsets": "topics.topic_id at the commit"}
    for table, comment in comments.items():
        column = sa.Column("topic_id", sa.BigInteger(), nullable=False, server_default="0", comment=comment)
        op.add_column(table, column, schema=schema())
    if on_postgres():
        op.alter_column("topics", "partitions", existing_nullable=False, comment="0: deleted", schema=schema())
        for signature, definition in NEW.items():
            op.execute(definition)
            op.execute(f"REVOKE ALL ON FUNCTION {signature} FROM PUBLIC")
        for definition in (COMMIT_OFFSETS, WRITE_OFFSETS, COMMITTED_OFFSET):
            op.execute(definition)


def downgrade() -> None:
    if on_postgres():
        scripts = op.get_context().environment_context.script
        granted, retained = scripts.get_revision("0011").module, scripts.get_revision("0013").module
        op.execute("DROP FUNCTION rota.write_offsets(integer, text, text, text, jsonb)")
        for definition in (granted.COMMITTED_OFFSET, retained.WRITE_OFFSETS, retained.COMMIT_OFFSETS):
            op.execute(definition)
        op.execute("REVOKE ALL ON FUNCTION rota.write_offsets(integer, text, text, text, jsonb) FROM PUBLIC")
        for signature in NEW:
            op.execute(f"DROP FUNCTION {signature}")
        op.alter_column("topics", "partitions", existing_nullable=False, comment=None, schema=schema())
    topics = sa.table("topics", sa.column("partitions"), schema=schema())
    op.execute(sa.delete(topics).where(topics.c.partitions == 0))
    for table in ("offsets", "topics"):
        with op.batch_alter_table(table, schema=schema()) as altered:
            altered.drop_column("topic_id")
