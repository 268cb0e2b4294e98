"""Shards with their leases, today's state as rows, and the journal."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = ("store", "shards", "replicas", "groups", "members", "offsets", "topics", "group_events")


def on_postgres() -> bool:
    return op.get_context().dialect.name == "postgresql"


def schema() -> str | None:
    return "rota" if on_postgres() else None


def key(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, primary_key=True, autoincrement=False, nullable=False)


def required(name: str, type_: sa.types.TypeEngine[Any], comment: str | None = None) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False, comment=comment)


def optional(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=True)


def name_type() -> sa.types.TypeEngine[Any]:
    return sa.Text(collation="C") if on_postgres() else sa.Text()


def json_type() -> sa.types.TypeEngine[Any]:
    return postgresql.JSONB() if on_postgres() else sa.JSON()


def upgrade() -> None:
    create_ownership()
    create_state()
    create_journal()


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
        schema=schema(),
    )
    op.create_table(
        "replicas",
        key("replica_id", sa.Text()),
        required("address", sa.Text(), "where clients reach it"),
        required("peer_address", sa.Text(), "where other replicas reach it"),
        required("seen_until_ms", sa.BigInteger(), "by this store's clock"),
        schema=schema(),
    )


def create_state() -> None:
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
        schema=schema(),
    )
    op.create_table(
        "topics",
        key("shard_id", sa.Integer()),
        key("namespace", name_type()),
        key("topic", name_type()),
        required("partitions", sa.Integer()),
        required("attributes", json_type(), "[[name, value], …]"),
        schema=schema(),
    )


def create_journal() -> None:
    # Postgres wants the partition key in the primary key.
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
        required("payload", json_type()),
        schema=schema(),
        postgresql_partition_by="RANGE (at)",
    )
    op.create_index(
        "group_events_of_group", "group_events", ["shard_id", "namespace", "group_id", "seq"], schema=schema()
    )
    if on_postgres():
        # Takes the lines of a day that has no partition of its own, so that no write ever fails for it.
        op.execute("CREATE TABLE rota.group_events_default PARTITION OF rota.group_events DEFAULT")


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table, schema=schema())
