"""A fencing token for each holder: takeovers are counted, and a generation without a member is not enough after one.

`subject` is the caller that joined as a member: only that caller may act in the member's name (ADR 43).
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

SEARCH_PATH = "SET search_path = pg_catalog, pg_temp"

# As in 0002, but for the rule of RT006: two members can hold one generation, one after the other.
_CHECK_FENCE = """
CREATE OR REPLACE FUNCTION rota.check_fence(
    of_namespace text, of_group text, of_generation integer, of_member text, commits boolean
)
RETURNS void LANGUAGE plpgsql {search_path} AS $$
DECLARE
    found_group record;
BEGIN
    SELECT g.shard_id, g.state, g.generation_id{takeovers} INTO found_group
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
    {rule}IF of_member IS NOT NULL AND NOT EXISTS (
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
_RULE = """IF of_member IS NULL AND found_group.takeovers > 0 THEN
        RAISE EXCEPTION 'MEMBER_ID_REQUIRED: a member of generation % of group % was replaced', of_generation, of_group
            USING ERRCODE = 'RT006', HINT = 'Name the member, or check its fencing token by rota.assert_token.';
    END IF;
    """
CHECK_FENCE = _CHECK_FENCE.format(search_path=SEARCH_PATH, takeovers=", g.takeovers", rule=_RULE)
FORMER_CHECK_FENCE = _CHECK_FENCE.format(search_path=SEARCH_PATH, takeovers="", rule="")

# A member id has one number among the takeovers of a generation. So it is enough to find the member at the call; what
# is checked again at the commit is that this member is still in this generation.
ASSERT_TOKEN = f"""
CREATE FUNCTION rota.assert_token(namespace text, group_id text, fencing_token bigint, member_id text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER {SEARCH_PATH} AS $$
DECLARE
    of_generation integer;
    of_takeover integer;
    holder text;
BEGIN
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
ASSERT_TOKEN_SIGNATURE = "rota.assert_token(text, text, bigint, text)"


def schema() -> str | None:
    return "rota" if op.get_context().dialect.name == "postgresql" else None


def upgrade() -> None:
    """With defaults: replicas of the release before this one write rows without these columns."""
    op.add_column(
        "groups",
        sa.Column(
            "takeovers",
            sa.Integer(),
            nullable=False,
            server_default="0",
            comment="of members, in this generation",
        ),
        schema=schema(),
    )
    op.add_column(
        "members",
        sa.Column(
            "takeover",
            sa.Integer(),
            nullable=False,
            server_default="0",
            comment="its number among the takeovers",
        ),
        schema=schema(),
    )
    op.add_column(
        "members",
        sa.Column(
            "subject", sa.Text(), nullable=False, server_default="", comment="the caller that joined; empty: not known"
        ),
        schema=schema(),
    )
    if schema():
        op.execute(CHECK_FENCE)
        op.execute(ASSERT_TOKEN)
        op.execute(f"REVOKE ALL ON FUNCTION {ASSERT_TOKEN_SIGNATURE} FROM PUBLIC")


def downgrade() -> None:
    if schema():
        op.execute(f"DROP FUNCTION {ASSERT_TOKEN_SIGNATURE}")
        op.execute(FORMER_CHECK_FENCE)
    with op.batch_alter_table("members", schema=schema()) as members:
        members.drop_column("subject")
        members.drop_column("takeover")
    with op.batch_alter_table("groups", schema=schema()) as groups:
        groups.drop_column("takeovers")
