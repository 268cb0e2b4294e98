"""Fences in users' transactions hold up no shard, and a role may use them in the namespaces that it was granted.

A deferred trigger runs early where the transaction says `SET CONSTRAINTS … IMMEDIATE`. It took the gate of the shard
then, and held it until the transaction ended. Now it takes the gate only while the transaction commits; before, it
puts itself off until then. `PREPARE TRANSACTION` is refused: it would keep the gate.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0007"
branch_labels = None
depends_on = None

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


def upgrade() -> None:
    if op.get_context().dialect.name != "postgresql":
        return
    op.execute(IS_COMMITTING)
    op.execute("REVOKE ALL ON FUNCTION rota.is_committing(text) FROM PUBLIC")
    op.execute(FENCE_AT_COMMIT)
