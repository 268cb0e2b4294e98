"""A COMMIT of a procedure is recognised in every language of Postgres' messages, and in every procedural language.

The trigger of a fence puts itself off where it does not recognise a commit. It read the English line that PL/pgSQL has
on the stack there: with another `lc_messages`, with `standard_conforming_strings` off, and in PL/Python or PL/Perl, it
put itself off again and again, and the COMMIT never ended.
"""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# A deferred trigger runs early in SET CONSTRAINTS alone, and that has a line of its own on the stack: with the
# statement's text, or the name of a function in SQL. A procedural language itself is next on the stack only where it
# commits, and in all translations the line names it, as "PL/pgSQL". E'' reads the same whatever a session has set.
IS_COMMITTING = r"""
CREATE OR REPLACE FUNCTION rota.is_committing(context text) RETURNS boolean
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


def on_postgres() -> bool:
    return op.get_context().dialect.name == "postgresql"


def upgrade() -> None:
    if on_postgres():
        op.execute(IS_COMMITTING)


def downgrade() -> None:
    if on_postgres():
        former = op.get_context().environment_context.script.get_revision("0011").module.IS_COMMITTING
        op.execute(former.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
