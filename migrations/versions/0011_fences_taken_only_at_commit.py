"""Fences in users' transactions hold up no shard, and a role may use them in the namespaces that it was granted.

A deferred trigger runs early where the transaction says `SET CONSTRAINTS … IMMEDIATE`. It took the gate of the shard
then, and held it until the transaction ended. Now it takes the gate only while the transaction commits; before, it
puts itself off until then. `PREPARE TRANSACTION` is refused: it would keep the gate.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

CALLED = (
    "rota.assert_token(text, text, bigint, text)",
    "rota.assert_current(text, text, integer, text)",
    "rota.commit_offsets(text, text, integer, text, jsonb)",
    "rota.commit_offsets(text, text, integer, text, text, integer, bigint, text)",
    "rota.committed_offset(text, text, text, integer)",
)
"""The functions for applications."""

SEARCH_PATH = "SET search_path = pg_catalog, pg_temp"

# PG_CONTEXT has one line for each function on the stack, this one first: a trigger that runs inside a statement has the
# statement, or the function that ran it, on its second line. What a client sends as a statement of its own shows only
# in current_query(), which is null where the protocol commits without a statement. Several statements in one text
# cannot be told apart, so they are refused where they could be meant to take the gate early.
IS_COMMITTING = f"""
CREATE FUNCTION rota.is_committing(context text) RETURNS boolean
LANGUAGE plpgsql {SEARCH_PATH} AS $$
DECLARE
    caller constant text := split_part(context, E'\\n', 2);
    sent constant text := coalesce(current_query(), '');
BEGIN
    IF caller <> '' AND caller !~ '^PL/pgSQL function .* line \\d+ at COMMIT$' THEN
        RETURN false;
    END IF;
    IF sent ~* '^\\s*set\\s+constraints\\M[^;]*;?\\s*$' THEN
        RETURN false;
    END IF;
    IF sent ~* '\\mset\\M.*\\mconstraints\\M' OR sent ~* '\\mprepare\\M.*\\mtransaction\\M' THEN
        RAISE EXCEPTION 'INVALID_REQUEST: a fence needs a COMMIT' USING ERRCODE = 'RT005',
            HINT = 'Send COMMIT apart from SET CONSTRAINTS. PREPARE TRANSACTION cannot be fenced.';
    END IF;
    RETURN true;
END $$
"""

FENCE_AT_COMMIT = f"""
CREATE OR REPLACE FUNCTION rota.fence_at_commit() RETURNS trigger
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

ASSERT_CURRENT = f"""
CREATE OR REPLACE FUNCTION rota.assert_current(
    namespace text, group_id text, generation_id integer, member_id text DEFAULT NULL
)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER {SEARCH_PATH} AS $$
BEGIN
    PERFORM rota.check_role($1);
    PERFORM rota.check_fence($1, $2, $3, $4, false);
    INSERT INTO rota.fence_checks (namespace, group_id, generation_id, member_id) VALUES ($1, $2, $3, $4);
END $$
"""

ASSERT_TOKEN = f"""
CREATE OR REPLACE FUNCTION rota.assert_token(
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
    ) THEN
        RAISE EXCEPTION 'INVALID_REQUEST: an offset needs topic, partition and offset' USING ERRCODE = 'RT005',
            DETAIL = 'It may have a leader_epoch, and metadata of at most 4096 characters.';
    END IF;
    PERFORM rota.check_fence($1, $2, $3, $4, true);
    INSERT INTO rota.fence_checks (namespace, group_id, generation_id, member_id, offsets) VALUES ($1, $2, $3, $4, $5);
END $$
"""

COMMITTED_OFFSET = f"""
CREATE OR REPLACE FUNCTION rota.committed_offset(namespace text, group_id text, topic text, partition integer)
RETURNS bigint LANGUAGE plpgsql STABLE SECURITY DEFINER {SEARCH_PATH} AS $$
BEGIN
    PERFORM rota.check_role($1);
    RETURN coalesce((
        SELECT o."offset" FROM rota.groups AS g JOIN rota.offsets AS o USING (shard_id, namespace, group_id)
        WHERE g.namespace = $1 AND g.group_id = $2 AND o.topic = $3 AND o.partition = $4
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


NEW = {
    "rota.is_committing(text)": IS_COMMITTING,
    "rota.check_role(text)": CHECK_ROLE,
    "rota.grant_fences(text, text)": GRANT_FENCES,
    "rota.revoke_fences(text, text)": REVOKE_FENCES,
}
REPLACED = (FENCE_AT_COMMIT, ASSERT_TOKEN, ASSERT_CURRENT, COMMIT_OFFSETS, COMMITTED_OFFSET)


def upgrade() -> None:
    if op.get_context().dialect.name != "postgresql":
        return
    name = sa.Text(collation="C")
    op.create_table(
        "fence_roles",
        sa.Column("role_name", name, primary_key=True),
        sa.Column("namespace", name, primary_key=True, comment="* is all of them"),
        schema="rota",
    )
    for signature, definition in NEW.items():
        op.execute(definition)
        op.execute(f"REVOKE ALL ON FUNCTION {signature} FROM PUBLIC")
    for definition in REPLACED:
        op.execute(definition)


def downgrade() -> None:
    if op.get_context().dialect.name != "postgresql":
        return
    scripts = op.get_context().environment_context.script
    first, tokens = scripts.get_revision("0002").module, scripts.get_revision("0009").module
    former = (first.FENCE_AT_COMMIT, first.ASSERT_CURRENT, first.COMMIT_OFFSETS, first.COMMITTED_OFFSET)
    for definition in (*former, tokens.ASSERT_TOKEN):
        op.execute(definition.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
    for signature in NEW:
        op.execute(f"DROP FUNCTION {signature}")
    op.drop_table("fence_roles", schema="rota")
