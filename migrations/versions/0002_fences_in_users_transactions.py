"""Fences and progress inside a user's own transaction: `rota.assert_current` and `rota.commit_offsets`. Postgres only.

A call is checked at once, to fail early, and once more when the transaction commits: it leaves a row in
`fence_checks`, whose deferred trigger takes the group's fence just before the commit and writes the offsets then. So a
transaction may be as slow as it likes without holding up a rebalance, and a stale one cannot commit (ADR 0015).
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# The functions run with the rights of whoever migrates. All names in them are qualified, and nobody can slip in others.
SEARCH_PATH = "SET search_path = pg_catalog, pg_temp"

CHECK_FENCE = f"""
CREATE FUNCTION rota.check_fence(
    of_namespace text, of_group text, of_generation integer, of_member text, commits boolean
)
RETURNS void LANGUAGE plpgsql {SEARCH_PATH} AS $$
DECLARE
    found_group record;
BEGIN
    SELECT g.shard_id, g.state, g.generation_id INTO found_group
    FROM rota.groups AS g WHERE g.namespace = of_namespace AND g.group_id = of_group AND g.state <> 'Dead';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'GROUP_ID_NOT_FOUND: there is no group % in namespace %', of_group, of_namespace
            USING ERRCODE = 'RT003';
    END IF;
    IF found_group.generation_id IS DISTINCT FROM of_generation OR found_group.state = 'Empty' THEN
        RAISE EXCEPTION 'ILLEGAL_GENERATION: % is not the current generation of group %', of_generation, of_group
            USING ERRCODE = 'RT001',
                DETAIL = format('The group is %s in generation %s.', found_group.state, found_group.generation_id);
    END IF;
    IF of_member IS NOT NULL AND NOT EXISTS (
        SELECT FROM rota.members AS m
        WHERE m.shard_id = found_group.shard_id AND m.namespace = of_namespace AND m.group_id = of_group
            AND m.member_id = of_member
    ) THEN
        RAISE EXCEPTION 'UNKNOWN_MEMBER_ID: % is not in generation % of group %', of_member, of_generation, of_group
            USING ERRCODE = 'RT002';
    END IF;
    IF commits AND found_group.state = 'CompletingRebalance' THEN
        RAISE EXCEPTION 'REBALANCE_IN_PROGRESS: generation % of group % has no assignment yet', of_generation, of_group
            USING ERRCODE = 'RT004';
    END IF;
END $$
"""

# The gate of the shard is passed by many transactions at a time, and closed by the shard's owner for as long as it
# writes a change of a group. Unlike a lock on the group's row it is fair: those who pass cannot starve the owner. The
# row is locked, too: that is what fails where this transaction's snapshot is older than the group's last change.
# The time-out is shorter than Postgres's own for deadlocks, so that it is never the owner's write that is given up.
FENCE_AT_COMMIT = f"""
CREATE FUNCTION rota.fence_at_commit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER {SEARCH_PATH} SET lock_timeout = '500ms' AS $$
DECLARE
    of_shard integer;
BEGIN
    BEGIN
        SELECT g.shard_id INTO of_shard
        FROM rota.groups AS g WHERE g.namespace = NEW.namespace AND g.group_id = NEW.group_id;
        PERFORM pg_advisory_xact_lock_shared(7682003, of_shard);
        PERFORM FROM rota.groups AS g WHERE g.namespace = NEW.namespace AND g.group_id = NEW.group_id FOR SHARE;
        PERFORM rota.check_fence(
            NEW.namespace, NEW.group_id, NEW.generation_id, NEW.member_id, NEW.offsets IS NOT NULL
        );
        IF NEW.offsets IS NOT NULL THEN
            PERFORM rota.write_offsets(of_shard, NEW.namespace, NEW.group_id, NEW.member_id, NEW.offsets);
        END IF;
    EXCEPTION WHEN lock_not_available THEN
        RAISE EXCEPTION 'group % is changing right now', NEW.group_id
            USING ERRCODE = 'serialization_failure', HINT = 'Repeat the transaction.';
    END;
    DELETE FROM rota.fence_checks AS c WHERE c.id = NEW.id;
    RETURN NULL;
END $$
"""

# Rows are written in order of their key, as two transactions that commit several offsets must not wait for one another.
WRITE_OFFSETS = f"""
CREATE FUNCTION rota.write_offsets(of_shard integer, of_namespace text, of_group text, of_member text, given jsonb)
RETURNS void LANGUAGE sql {SEARCH_PATH} AS $$
    WITH last_given AS (
        SELECT DISTINCT ON (item->>'topic', (item->>'partition')::integer) item
        FROM jsonb_array_elements(given) WITH ORDINALITY AS each (item, place)
        ORDER BY item->>'topic', (item->>'partition')::integer, place DESC
    ), written AS (
        INSERT INTO rota.offsets (
            shard_id, namespace, group_id, topic, partition, "offset", leader_epoch, metadata, committed_at_ms
        )
        SELECT of_shard, of_namespace, of_group, item->>'topic', (item->>'partition')::integer,
            (item->>'offset')::bigint, (item->>'leader_epoch')::integer, coalesce(item->>'metadata', ''),
            (extract(epoch FROM clock_timestamp()) * 1000)::bigint
        FROM last_given ORDER BY item->>'topic', (item->>'partition')::integer
        ON CONFLICT (shard_id, namespace, group_id, topic, partition) DO UPDATE SET
            "offset" = excluded."offset", leader_epoch = excluded.leader_epoch, metadata = excluded.metadata,
            committed_at_ms = excluded.committed_at_ms
        RETURNING offsets.topic, offsets.partition
    )
    INSERT INTO rota.side_commits (shard_id, namespace, group_id, topic, partition, member_id)
    SELECT of_shard, of_namespace, of_group, topic, partition, of_member FROM written
$$
"""

ASSERT_CURRENT = f"""
CREATE FUNCTION rota.assert_current(namespace text, group_id text, generation_id integer, member_id text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER {SEARCH_PATH} AS $$
BEGIN
    PERFORM rota.check_fence($1, $2, $3, $4, false);
    INSERT INTO rota.fence_checks (namespace, group_id, generation_id, member_id) VALUES ($1, $2, $3, $4);
END $$
"""

COMMIT_OFFSETS = f"""
CREATE FUNCTION rota.commit_offsets(
    namespace text, group_id text, generation_id integer, member_id text, offsets jsonb
)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER {SEARCH_PATH} AS $$
BEGIN
    IF $4 IS NULL OR jsonb_typeof($5) IS DISTINCT FROM 'array' OR jsonb_array_length($5) = 0 THEN
        RAISE EXCEPTION 'INVALID_REQUEST: member_id and an array of offsets are required' USING ERRCODE = 'RT005';
    END IF;
    IF EXISTS (
        SELECT FROM jsonb_array_elements($5) AS item
        WHERE coalesce(item->>'topic', '') !~ '^[A-Za-z0-9._:-]{{1,249}}$'
            OR coalesce(item->>'partition', '') !~ '^[0-9]{{1,9}}$'
            OR coalesce(item->>'offset', '') !~ '^[0-9]{{1,18}}$'
            OR coalesce(item->>'leader_epoch', '0') !~ '^[0-9]{{1,9}}$' OR length(item->>'metadata') > 4096
    ) THEN
        RAISE EXCEPTION 'INVALID_REQUEST: an offset needs topic, partition and offset' USING ERRCODE = 'RT005',
            DETAIL = 'It may have a leader_epoch, and metadata of at most 4096 characters.';
    END IF;
    PERFORM rota.check_fence($1, $2, $3, $4, true);
    INSERT INTO rota.fence_checks (namespace, group_id, generation_id, member_id, offsets) VALUES ($1, $2, $3, $4, $5);
END $$
"""

COMMIT_OFFSET = f"""
CREATE FUNCTION rota.commit_offsets(
    namespace text, group_id text, generation_id integer, member_id text,
    topic text, partition integer, "offset" bigint, metadata text DEFAULT ''
)
RETURNS void LANGUAGE sql SECURITY DEFINER {SEARCH_PATH} AS $$
    SELECT rota.commit_offsets($1, $2, $3, $4, jsonb_build_array(
        jsonb_build_object('topic', $5, 'partition', $6, 'offset', $7, 'metadata', $8)
    ))
$$
"""

COMMITTED_OFFSET = f"""
CREATE FUNCTION rota.committed_offset(namespace text, group_id text, topic text, partition integer)
RETURNS bigint LANGUAGE sql STABLE SECURITY DEFINER {SEARCH_PATH} AS $$
    SELECT coalesce((
        SELECT o."offset" FROM rota.groups AS g JOIN rota.offsets AS o USING (shard_id, namespace, group_id)
        WHERE g.namespace = $1 AND g.group_id = $2 AND o.topic = $3 AND o.partition = $4
    ), -1)
$$
"""

FUNCTIONS = {
    "rota.check_fence(text, text, integer, text, boolean)": CHECK_FENCE,
    "rota.write_offsets(integer, text, text, text, jsonb)": WRITE_OFFSETS,
    "rota.fence_at_commit()": FENCE_AT_COMMIT,
    "rota.assert_current(text, text, integer, text)": ASSERT_CURRENT,
    "rota.commit_offsets(text, text, integer, text, jsonb)": COMMIT_OFFSETS,
    "rota.commit_offsets(text, text, integer, text, text, integer, bigint, text)": COMMIT_OFFSET,
    "rota.committed_offset(text, text, text, integer)": COMMITTED_OFFSET,
}


def upgrade() -> None:
    if op.get_context().dialect.name != "postgresql":
        return
    name = sa.Text(collation="C")
    op.create_table(
        "side_commits",
        sa.Column("shard_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("id", sa.BigInteger(), sa.Identity(), primary_key=True),
        sa.Column("namespace", name, nullable=False),
        sa.Column("group_id", name, nullable=False),
        sa.Column("topic", name, nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("member_id", name, nullable=False),
        schema="rota",
    )
    # Unlogged: a row lives for as long as the transaction that wrote it, and nobody else ever sees it.
    op.create_table(
        "fence_checks",
        sa.Column("id", sa.BigInteger(), sa.Identity(), primary_key=True),
        sa.Column("namespace", name, nullable=False),
        sa.Column("group_id", name, nullable=False),
        sa.Column("generation_id", sa.Integer(), nullable=False),
        sa.Column("member_id", name),
        sa.Column(
            "offsets", postgresql.JSONB(), comment="what is to be committed; null where the fence alone is checked"
        ),
        schema="rota",
        prefixes=["UNLOGGED"],
    )
    for signature, definition in FUNCTIONS.items():
        op.execute(definition)
        op.execute(f"REVOKE ALL ON FUNCTION {signature} FROM PUBLIC")
    op.execute(
        "CREATE CONSTRAINT TRIGGER fence_at_commit AFTER INSERT ON rota.fence_checks"
        " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION rota.fence_at_commit()"
    )


def downgrade() -> None:
    if op.get_context().dialect.name != "postgresql":
        return
    op.drop_table("fence_checks", schema="rota")
    op.drop_table("side_commits", schema="rota")
    for signature in reversed(FUNCTIONS):
        op.execute(f"DROP FUNCTION {signature}")
