"""The schema of the first release: shards with their leases, today's state as rows, the journal, and SQL functions.

Fences and progress inside a user's own transaction are Postgres' alone: `rota.assert_token`, `rota.assert_current` and
`rota.commit_offsets`. A call is checked at once, to fail early, and once more when the transaction commits: it leaves a
row in `fence_checks`, whose deferred trigger takes the group's fence just before the commit and writes the offsets
then. So a transaction may be as slow as it likes without holding up a rebalance, and a stale one cannot commit
(ADR 15).
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

READER = "rota_reader"
"""A role that only reads the journal. It belongs to the whole cluster, so it may exist already."""
READ_BY_IT = ("store", "shards", "group_events", "topics", "journal_readers", "alembic_version")

# The functions run with the rights of the role that migrates. All names in them are qualified, and no caller can slip
# in others.
SEARCH_PATH = "SET search_path = pg_catalog, pg_temp"

CALLED = (
    "rota.assert_token(text, text, bigint, text)",
    "rota.assert_current(text, text, integer, text)",
    "rota.commit_offsets(text, text, integer, text, jsonb)",
    "rota.commit_offsets(text, text, integer, text, text, integer, bigint, text)",
    "rota.committed_offset(text, text, text, integer)",
)
"""The functions for applications."""

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

CHECK_FENCE_IN_ROWS = f"""
CREATE FUNCTION rota.check_fence_in_rows(
    of_namespace text, of_group text, of_generation integer, of_member text, commits boolean
)
RETURNS void LANGUAGE plpgsql {SEARCH_PATH} AS $$
DECLARE
    found_group record;
BEGIN
    SELECT g.shard_id, g.state, g.generation_id, g.takeovers INTO found_group
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
    IF of_member IS NULL AND found_group.takeovers > 0 THEN
        RAISE EXCEPTION 'MEMBER_ID_REQUIRED: a member of generation % of group % was replaced', of_generation, of_group
            USING ERRCODE = 'RT006', HINT = 'Name the member, or check its fencing token by rota.assert_token.';
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

# A store that was restored names a generation that was over long ago. Its holder must not pass before a replica has
# loaded the shard and applied the floor.
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

CHECK_ROLE = f"""
CREATE FUNCTION rota.check_role(of_namespace text) RETURNS void LANGUAGE plpgsql {SEARCH_PATH} AS $$
DECLARE
    caller constant name := CASE current_setting('role') WHEN 'none' THEN session_user ELSE current_setting('role') END;
BEGIN
    IF NOT pg_has_role(caller, (SELECT s.nspowner FROM pg_namespace AS s WHERE s.nspname = 'rota'), 'USAGE')
        AND NOT EXISTS (
            SELECT FROM rota.fence_roles AS f JOIN pg_roles AS r ON r.rolname = f.role_name
            WHERE f.namespace IN (of_namespace, '*') AND pg_has_role(caller, r.oid, 'USAGE')
        )
    THEN
        RAISE EXCEPTION 'GROUP_AUTHORIZATION_FAILED: role % may not use the fences of namespace %', caller, of_namespace
            USING ERRCODE = 'RT007', HINT = format('SELECT rota.grant_fences(%L, %L);', caller, of_namespace);
    END IF;
END $$
"""

# PG_CONTEXT has one line for each function on the stack, this one first: a trigger that runs inside a statement has the
# statement, or the function that ran it, on its second line. A deferred trigger runs early in SET CONSTRAINTS alone,
# which has a line of its own on the stack: with the statement's text, or the name of a function in SQL. A procedural
# language itself is next on the stack only if it commits, and in all translations the line names it, as "PL/pgSQL".
# What a client sends as a statement of its own shows only in current_query(), which is null if the protocol commits
# without a statement. Several statements in one text cannot be told apart, so they are refused if they could be meant
# to take the gate early. E'' reads the same whatever a session has set.
IS_COMMITTING = r"""
CREATE FUNCTION rota.is_committing(context text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller constant text := split_part(context, E'\n', 2);
    sent constant text := coalesce(current_query(), '');
BEGIN
    IF caller <> '' AND (caller !~ 'PL/' OR caller ~* E'\\mset\\M.*\\mconstraints\\M') THEN
        RETURN false;
    END IF;
    IF sent ~* E'^\\s*set\\s+constraints\\M[^;]*;?\\s*$' THEN
        RETURN false;
    END IF;
    IF sent ~* E'\\mset\\M.*\\mconstraints\\M' OR sent ~* E'\\mprepare\\M.*\\mtransaction\\M' THEN
        RAISE EXCEPTION 'INVALID_REQUEST: a fence needs a COMMIT' USING ERRCODE = 'RT005',
            HINT = 'Send COMMIT apart from SET CONSTRAINTS. PREPARE TRANSACTION cannot be fenced.';
    END IF;
    RETURN true;
END $$
"""

IS_WHOLE = f"""
CREATE FUNCTION rota.is_whole(given text, lowest numeric, highest numeric) RETURNS boolean
LANGUAGE sql IMMUTABLE {SEARCH_PATH} AS $$
    SELECT CASE WHEN given ~ '^(0|[1-9][0-9]{{0,18}})$' THEN given::numeric BETWEEN lowest AND highest ELSE false END
$$
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

# The caller holds the gate of the shard, which the owner closes while it records the deletion of a topic. Rows are
# written in order of their key, as two transactions that commit several offsets must not wait for one another.
WRITE_OFFSETS = f"""
CREATE FUNCTION rota.write_offsets(
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

# The gate of the shard is passed by many transactions at a time, and closed by the shard's owner for as long as it
# writes a change of a group. Unlike a lock on the group's row it is fair: those who pass cannot starve the owner. The
# row is locked, too: that is what fails if this transaction's snapshot is older than the group's last change. A trigger
# that runs early, by SET CONSTRAINTS … IMMEDIATE, is deferred again: it would hold the gate until the transaction ends.
# The time-out is shorter than Postgres's own for deadlocks, so that it is never the owner's write that is given up.
FENCE_AT_COMMIT = f"""
CREATE FUNCTION rota.fence_at_commit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER {SEARCH_PATH} SET lock_timeout = '500ms' AS $$
DECLARE
    context text;
    of_shard integer;
BEGIN
    GET DIAGNOSTICS context = PG_CONTEXT;
    IF NOT rota.is_committing(context) THEN
        SET CONSTRAINTS rota.fence_at_commit DEFERRED;
        INSERT INTO rota.fence_checks (namespace, group_id, generation_id, member_id, offsets)
        VALUES (NEW.namespace, NEW.group_id, NEW.generation_id, NEW.member_id, NEW.offsets);
        DELETE FROM rota.fence_checks AS c WHERE c.id = NEW.id;
        RETURN NULL;
    END IF;
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

# A member id has one number among the takeovers of a generation. So it is enough to find the member at the call; what
# is checked again at the commit is that this member is still in this generation.
ASSERT_TOKEN = f"""
CREATE FUNCTION rota.assert_token(
    namespace text, group_id text, fencing_token bigint, member_id text DEFAULT NULL
)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER {SEARCH_PATH} AS $$
DECLARE
    of_generation integer;
    of_takeover integer;
    holder text;
BEGIN
    PERFORM rota.check_role($1);
    IF $3 IS NULL OR $3 < 0 OR $3 >> 20 > 2147483647 THEN
        RAISE EXCEPTION 'INVALID_REQUEST: % is no fencing token', $3 USING ERRCODE = 'RT005';
    END IF;
    of_generation := $3 >> 20;
    of_takeover := $3 & 1048575;
    holder := $4;
    IF $4 IS NOT NULL OR of_takeover > 0 THEN
        SELECT m.member_id INTO holder
        FROM rota.groups AS g JOIN rota.members AS m USING (shard_id, namespace, group_id)
        WHERE g.namespace = $1 AND g.group_id = $2 AND g.generation_id = of_generation
            AND m.takeover = of_takeover AND m.member_id = coalesce($4, m.member_id);
        IF NOT FOUND THEN
            IF $4 IS NOT NULL OR NOT EXISTS (
                SELECT FROM rota.groups AS g WHERE g.namespace = $1 AND g.group_id = $2
            ) THEN
                PERFORM rota.check_fence($1, $2, of_generation, $4, false);
            END IF;
            RAISE EXCEPTION 'ILLEGAL_GENERATION: no member of group % has the fencing token % now', $2, $3
                USING ERRCODE = 'RT001';
        END IF;
    END IF;
    PERFORM rota.check_fence($1, $2, of_generation, holder, false);
    INSERT INTO rota.fence_checks (namespace, group_id, generation_id, member_id)
    VALUES ($1, $2, of_generation, holder);
END $$
"""

ASSERT_CURRENT = f"""
CREATE FUNCTION rota.assert_current(
    namespace text, group_id text, generation_id integer, member_id text DEFAULT NULL
)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER {SEARCH_PATH} AS $$
BEGIN
    PERFORM rota.check_role($1);
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

# With the rights of the caller: only the owner of the schema, or a superuser, can grant.
GRANT_FENCES = f"""
CREATE FUNCTION rota.grant_fences(role text, namespace text) RETURNS void LANGUAGE plpgsql {SEARCH_PATH} AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA rota TO %I', $1);
    EXECUTE format('GRANT EXECUTE ON FUNCTION {", ".join(CALLED)} TO %I', $1);
    INSERT INTO rota.fence_roles (role_name, namespace) VALUES ($1, $2) ON CONFLICT DO NOTHING;
END $$
"""

REVOKE_FENCES = f"""
CREATE FUNCTION rota.revoke_fences(role text, namespace text) RETURNS void LANGUAGE plpgsql {SEARCH_PATH} AS $$
BEGIN
    DELETE FROM rota.fence_roles AS f WHERE f.role_name = $1 AND f.namespace = $2;
    IF NOT EXISTS (SELECT FROM rota.fence_roles AS f WHERE f.role_name = $1) THEN
        EXECUTE format('REVOKE EXECUTE ON FUNCTION {", ".join(CALLED)} FROM %I', $1);
        EXECUTE format('REVOKE USAGE ON SCHEMA rota FROM %I', $1);
    END IF;
END $$
"""

FUNCTIONS = {
    "rota.check_fence_in_rows(text, text, integer, text, boolean)": CHECK_FENCE_IN_ROWS,
    "rota.check_fence(text, text, integer, text, boolean)": CHECK_FENCE,
    "rota.check_role(text)": CHECK_ROLE,
    "rota.is_committing(text)": IS_COMMITTING,
    "rota.is_whole(text, numeric, numeric)": IS_WHOLE,
    "rota.topic_id(integer, text, text)": TOPIC_ID,
    "rota.write_offsets(integer, text, text, text, jsonb)": WRITE_OFFSETS,
    "rota.fence_at_commit()": FENCE_AT_COMMIT,
    "rota.assert_token(text, text, bigint, text)": ASSERT_TOKEN,
    "rota.assert_current(text, text, integer, text)": ASSERT_CURRENT,
    "rota.commit_offsets(text, text, integer, text, jsonb)": COMMIT_OFFSETS,
    "rota.commit_offsets(text, text, integer, text, text, integer, bigint, text)": COMMIT_OFFSET,
    "rota.committed_offset(text, text, text, integer)": COMMITTED_OFFSET,
    "rota.grant_fences(text, text)": GRANT_FENCES,
    "rota.revoke_fences(text, text)": REVOKE_FENCES,
}
"""Functions that only the roles may call that were granted them."""


def on_postgres() -> bool:
    return op.get_context().dialect.name == "postgresql"


def schema() -> str | None:
    return "rota" if on_postgres() else None


def key(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, primary_key=True, autoincrement=False, nullable=False)


def required(
    name: str, type_: sa.types.TypeEngine[Any], comment: str | None = None, default: str | None = None
) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False, comment=comment, server_default=default)


def optional(name: str, type_: sa.types.TypeEngine[Any], comment: str | None = None) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=True, comment=comment)


def name_type() -> sa.types.TypeEngine[Any]:
    """Names sort by their bytes on every engine."""
    return sa.Text(collation="C") if on_postgres() else sa.Text()


def json_type() -> sa.types.TypeEngine[Any]:
    return postgresql.JSONB() if on_postgres() else sa.JSON()


def upgrade() -> None:
    create_ownership()
    create_groups()
    create_topics()
    create_journal()
    create_access()
    if on_postgres():
        create_fences()
        create_reader()


def create_ownership() -> None:
    op.create_table(
        "store",
        key("id", sa.Integer()),
        required("shard_count", sa.Integer()),
        required("incarnation", sa.Text(), "random id of this journal: its sequence numbers mean this one"),
        required("created_at_ms", sa.BigInteger()),
        sa.CheckConstraint("id = 1", name="store_is_one_row"),
        schema=schema(),
    )
    op.create_table(
        "shards",
        key("shard_id", sa.Integer()),
        required("replica_id", sa.Text()),
        required("address", sa.Text()),
        required("epoch", sa.BigInteger()),
        required("lease_until_ms", sa.BigInteger(), "by this store's clock"),
        required("last_seq", sa.BigInteger(), "the journal's last entry of this shard"),
        required("first_seq", sa.BigInteger(), "the journal's first entry of this shard that was not pruned", "1"),
        required(
            "claimed_epoch",
            sa.BigInteger(),
            "the epoch that claimed_seq means",
            "0",
        ),
        required("claimed_seq", sa.BigInteger(), "the journal's last entry when that epoch began", "0"),
        optional("timeline", sa.Text(), "of the server at the last renewal; null where it is unknown"),
        required(
            "generation_floor",
            sa.Integer(),
            "no group of this shard grants this generation or an earlier one",
            "0",
        ),
        required("epoch_floor", sa.BigInteger(), "no claim gets this epoch or an earlier one", "0"),
        schema=schema(),
    )
    op.create_table(
        "replicas",
        key("replica_id", sa.Text()),
        required("address", sa.Text(), "where clients reach it"),
        required("peer_address", sa.Text(), "where other replicas reach it"),
        required("grpc_address", sa.Text(), "where clients reach it over gRPC", ""),
        required("worker_http_port", sa.Integer(), "shared with no worker beside it", "0"),
        required("worker_grpc_port", sa.Integer(), "shared with no worker beside it", "0"),
        required("seen_until_ms", sa.BigInteger(), "by this store's clock"),
        schema=schema(),
    )


def create_groups() -> None:
    op.create_table(
        "groups",
        key("shard_id", sa.Integer()),
        key("namespace", name_type()),
        key("group_id", name_type()),
        required("state", sa.Text()),
        required("generation_id", sa.Integer()),
        required("join_generation_id", sa.Integer()),
        optional("protocol_type", sa.Text()),
        optional("protocol_name", sa.Text()),
        optional("leader_id", sa.Text()),
        required("state_since_ms", sa.BigInteger()),
        required("rebalance_reason", sa.Text()),
        required("rebalance_by", sa.Text()),
        required("takeovers", sa.Integer(), "of members, in this generation", "0"),
        required("rebalance_cause", sa.Text(), "a code; empty: none", ""),
        optional("frozen_until_ms", sa.BigInteger(), "null: not frozen"),
        required("frozen_reason", sa.Text(), default=""),
        required("leaving", sa.Text(), "JSON: members that may leave, and until when", ""),
        required("quarantine", sa.Text(), "JSON: rule, suspects and quarantined units", ""),
        schema=schema(),
    )
    op.create_index("groups_by_name", "groups", ["namespace", "group_id"], schema=schema())
    op.create_table(
        "members",
        key("shard_id", sa.Integer()),
        key("namespace", name_type()),
        key("group_id", name_type()),
        key("member_id", name_type()),
        required("position", sa.Integer()),
        optional("group_instance_id", sa.Text()),
        required("client_id", sa.Text()),
        required("host", sa.Text()),
        required("session_timeout_ms", sa.BigInteger()),
        required("rebalance_timeout_ms", sa.BigInteger()),
        required("protocols", json_type(), "[[name, metadata in base64], …] in order of preference"),
        required("assignment", sa.LargeBinary()),
        required("takeover", sa.Integer(), "its number among the takeovers", "0"),
        required("subject", sa.Text(), "the caller that joined; empty: not known", ""),
        schema=schema(),
    )
    op.create_table(
        "offsets",
        key("shard_id", sa.Integer()),
        key("namespace", name_type()),
        key("group_id", name_type()),
        key("topic", name_type()),
        key("partition", sa.Integer()),
        required("offset", sa.BigInteger()),
        optional("leader_epoch", sa.Integer()),
        required("metadata", sa.Text()),
        required("committed_at_ms", sa.BigInteger()),
        optional("expires_at_ms", sa.BigInteger(), "null: the retention of the server counts"),
        required("topic_id", sa.BigInteger(), "topics.topic_id at the commit", "0"),
        schema=schema(),
    )


def create_topics() -> None:
    op.create_table(
        "topics",
        key("shard_id", sa.Integer()),
        key("namespace", name_type()),
        key("topic", name_type()),
        required("partitions", sa.Integer(), "0: deleted"),
        required("attributes", json_type(), "[[name, value], …]"),
        required("revision", sa.BigInteger(), "how many changes of topics the namespace had then", "0"),
        required("topic_id", sa.BigInteger(), "revision of the last deletion of the name", "0"),
        schema=schema(),
    )


def create_journal() -> None:
    # Postgres needs the partition key in the primary key.
    at = key("at", sa.TIMESTAMP(timezone=True)) if on_postgres() else required("at", sa.BigInteger())
    op.create_table(
        "group_events",
        key("shard_id", sa.Integer()),
        key("seq", sa.BigInteger()),
        at,
        required("epoch", sa.BigInteger()),
        required("namespace", name_type()),
        required("group_id", name_type()),
        required("generation_id", sa.Integer()),
        required("kind", sa.Text()),
        required("reason", sa.Text()),
        # As jsonb it would cost a reader of the whole journal a quarter of its time; no SQL reads its fields.
        required("payload", sa.Text() if on_postgres() else sa.JSON()),
        schema=schema(),
        postgresql_partition_by="RANGE (at)",
    )
    op.create_index(
        "group_events_of_group", "group_events", ["shard_id", "namespace", "group_id", "seq"], schema=schema()
    )
    if on_postgres():
        # Takes the lines of a day that has no partition of its own, so that no write ever fails for it.
        op.execute("CREATE TABLE rota.group_events_default PARTITION OF rota.group_events DEFAULT")
    op.create_table(
        "journal_readers",
        sa.Column("reader", sa.Text(), primary_key=True, nullable=False),
        required("incarnation", sa.Text(), "the journal that the positions mean"),
        required("positions", sa.Text(), '{"shard id": last sequence number read}, as JSON'),
        required("updated_at_ms", sa.BigInteger(), "by this store's clock"),
        schema=schema(),
    )


def create_access() -> None:
    op.create_table(
        "tokens",
        key("token_id", sa.Text()),
        required("name", sa.Text()),
        required("digest", sa.Text(), "SHA-256 of the token, in hexadecimal"),
        required("grants", sa.Text(), "its scope: rules, as JSON"),
        required("created_at_ms", sa.BigInteger()),
        optional("expires_at_ms", sa.BigInteger()),
        optional("revoked_at_ms", sa.BigInteger()),
        required("note", sa.Text()),
        optional("last_used_at_ms", sa.BigInteger(), "give or take minutes, by the clock of a server"),
        schema=schema(),
    )
    op.create_table(
        "console_sessions",
        sa.Column("digest", sa.Text(), primary_key=True, nullable=False, comment="SHA-256 of the cookie, in hex"),
        required("sealed", sa.Text(), "the token, encrypted with a key from the cookie"),
        required("expires_at_ms", sa.BigInteger()),
        schema=schema(),
    )


def create_fences() -> None:
    op.create_table(
        "side_commits",
        key("shard_id", sa.Integer()),
        sa.Column("id", sa.BigInteger(), sa.Identity(), primary_key=True),
        required("namespace", name_type()),
        required("group_id", name_type()),
        required("topic", name_type()),
        required("partition", sa.Integer()),
        required("member_id", name_type()),
        schema="rota",
    )
    # Unlogged: a row lives for as long as the transaction that wrote it, and no other transaction ever sees it.
    op.create_table(
        "fence_checks",
        sa.Column("id", sa.BigInteger(), sa.Identity(), primary_key=True),
        required("namespace", name_type()),
        required("group_id", name_type()),
        required("generation_id", sa.Integer()),
        optional("member_id", name_type()),
        optional("offsets", json_type(), "what is to be committed; null where the fence alone is checked"),
        schema="rota",
        prefixes=["UNLOGGED"],
    )
    op.create_table(
        "fence_roles",
        sa.Column("role_name", name_type(), primary_key=True),
        sa.Column("namespace", name_type(), primary_key=True, comment="* is all of them"),
        schema="rota",
    )
    op.execute(TIMELINE)
    for signature, definition in FUNCTIONS.items():
        op.execute(definition)
        op.execute(f"REVOKE ALL ON FUNCTION {signature} FROM PUBLIC")
    op.execute(
        "CREATE CONSTRAINT TRIGGER fence_at_commit AFTER INSERT ON rota.fence_checks"
        " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION rota.fence_at_commit()"
    )


def create_reader() -> None:
    """Make the role if this login may, and grant it what it reads."""
    op.execute(
        f"""
        DO $$ BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
                CREATE ROLE {READER} NOLOGIN;
            END IF;
        EXCEPTION
            WHEN insufficient_privilege THEN RAISE NOTICE 'no right to create the role {READER}';
            WHEN duplicate_object OR unique_violation THEN NULL;
        END $$
        """
    )
    tables = ", ".join(f"rota.{table}" for table in READ_BY_IT)
    op.execute(
        f"""
        DO $$ BEGIN
            IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
                GRANT USAGE ON SCHEMA rota TO {READER};
                GRANT SELECT ON {tables} TO {READER};
                GRANT INSERT, UPDATE ON rota.journal_readers TO {READER};
            END IF;
        END $$
        """
    )
