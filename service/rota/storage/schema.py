"""The tables, once for both engines: Postgres keeps them in a schema named `rota`, SQLite in its one file.

Migrations are what makes the tables (`migrations/versions`); this module is what the statements
are written against, and a test compares the two. Times of the store's own clock are bigints in
milliseconds, so that lease arithmetic reads the same on both engines.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Dialect,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import JSON, TIMESTAMP, TypeDecorator, TypeEngine

POSTGRES_SCHEMA = "rota"
"""The users' own tables may live in the same database, under any name."""

FENCE_GATE = 7_682_003
"""Advisory locks (this, shard_id): shared by commits under a fence, exclusive while the owner writes."""

# Pruning excludes itself and backups. The lock ends with the transaction, so it holds through a pooler, too.
ALONE = text("SELECT pg_advisory_xact_lock(7682004)")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WallClockMs(TypeDecorator[int]):
    """Milliseconds since 1970: a `timestamptz` in Postgres, which can partition by it, a bigint in SQLite."""

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(TIMESTAMP(timezone=True) if dialect.name == "postgresql" else BigInteger())

    def process_bind_param(self, value: int | None, dialect: Dialect) -> Any:
        if value is None or dialect.name != "postgresql":
            return value
        return _EPOCH + timedelta(milliseconds=value)

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:  # noqa: ARG002 - SQLAlchemy's signature
        if value is None:  # the side of an outer join that has no row
            return None
        if isinstance(value, datetime):
            return (value - _EPOCH) // timedelta(milliseconds=1)
        return int(value)


class store_clock_ms(FunctionElement[int]):
    """The store's own clock, in milliseconds since 1970: the only one that judges leases.

    In Postgres it is the clock when the row is looked at, not when the transaction began: a claim
    that waited for a row lock must judge the lease by the time after the wait.
    """

    type = BigInteger()
    inherit_cache = True
    name = "store_clock_ms"


@compiles(store_clock_ms, "postgresql")
def _postgres_clock(_element: store_clock_ms, _compiler: SQLCompiler, **_: Any) -> str:
    return "CAST(extract(epoch from clock_timestamp()) * 1000 AS BIGINT)"


@compiles(store_clock_ms, "sqlite")
def _sqlite_clock(_element: store_clock_ms, _compiler: SQLCompiler, **_: Any) -> str:
    # unixepoch('subsec') would read better, but SQLite has it from 3.42 only.
    return "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)"


class _JsonText(TypeDecorator[Any]):
    """JSON that is kept as text: no SQL reads its fields, and it is read a quarter faster than jsonb."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:  # noqa: ARG002 - SQLAlchemy's signature
        return json.dumps(value, ensure_ascii=False)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002 - SQLAlchemy's signature
        return None if value is None else json.loads(value)


Json = JSON().with_variant(postgresql.JSONB(), "postgresql")
Payload = JSON().with_variant(_JsonText(), "postgresql")
# Names sort by their bytes on every engine. A locale's order would also change under the indexes
# when the operating system's C library is upgraded.
Name = Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")

metadata = MetaData(schema=POSTGRES_SCHEMA)

store = Table(
    "store",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("shard_count", Integer, nullable=False),
    Column(
        "incarnation", Text, nullable=False, comment="random id of this journal: its sequence numbers mean this one"
    ),
    Column("created_at_ms", BigInteger, nullable=False),
    CheckConstraint("id = 1", name="store_is_one_row"),
)

shards = Table(
    "shards",
    metadata,
    Column("shard_id", Integer, primary_key=True, autoincrement=False),
    Column("replica_id", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("lease_until_ms", BigInteger, nullable=False, comment="by this store's clock"),
    Column("last_seq", BigInteger, nullable=False, comment="the journal's last entry of this shard"),
    Column(
        "first_seq",
        BigInteger,
        nullable=False,
        server_default="1",
        comment="the journal's first entry of this shard that was not pruned",
    ),
    Column(
        "claimed_epoch",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="the epoch that claimed_seq means",
    ),
    Column(
        "claimed_seq",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="the journal's last entry when that epoch began",
    ),
    Column("timeline", Text, comment="of the server at the last renewal; null where it is unknown"),
    Column(
        "generation_floor",
        Integer,
        nullable=False,
        server_default="0",
        comment="no group of this shard grants this generation or an earlier one",
    ),
    Column(
        "epoch_floor",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="no claim gets this epoch or an earlier one",
    ),
)

replicas = Table(
    "replicas",
    metadata,
    Column("replica_id", Text, primary_key=True),
    Column("address", Text, nullable=False, comment="where clients reach it"),
    Column("peer_address", Text, nullable=False, comment="where other replicas reach it"),
    Column("grpc_address", Text, nullable=False, server_default="", comment="where clients reach it over gRPC"),
    Column(
        "worker_http_port",
        Integer,
        nullable=False,
        server_default="0",
        comment="shared with no worker beside it",
    ),
    Column(
        "worker_grpc_port",
        Integer,
        nullable=False,
        server_default="0",
        comment="shared with no worker beside it",
    ),
    Column("seen_until_ms", BigInteger, nullable=False, comment="by this store's clock"),
)

# Each key begins with the shard: a shard's rows load as one range, and a statement that carries a
# shard's id cannot touch the rows of another, whatever else it names.
groups = Table(
    "groups",
    metadata,
    Column("shard_id", Integer, primary_key=True, autoincrement=False),
    Column("namespace", Name, primary_key=True),
    Column("group_id", Name, primary_key=True),
    Column("state", Text, nullable=False),
    Column("generation_id", Integer, nullable=False),
    Column("join_generation_id", Integer, nullable=False),
    Column("protocol_type", Text),
    Column("protocol_name", Text),
    Column("leader_id", Text),
    Column("state_since_ms", BigInteger, nullable=False),
    Column("rebalance_reason", Text, nullable=False),
    Column("rebalance_by", Text, nullable=False),
    Column("takeovers", Integer, nullable=False, server_default="0", comment="of members, in this generation"),
    Column(
        "rebalance_cause",
        Text,
        nullable=False,
        server_default="",
        comment="a code; empty: none",
    ),
    Column("frozen_until_ms", BigInteger, comment="null: not frozen"),
    Column("frozen_reason", Text, nullable=False, server_default=""),
    Column("leaving", Text, nullable=False, server_default="", comment="JSON: members that may leave, and until when"),
    Column("quarantine", Text, nullable=False, server_default="", comment="JSON: rule, suspects and quarantined units"),
    Index("groups_by_name", "namespace", "group_id"),
)

members = Table(
    "members",
    metadata,
    Column("shard_id", Integer, primary_key=True, autoincrement=False),
    Column("namespace", Name, primary_key=True),
    Column("group_id", Name, primary_key=True),
    Column("member_id", Name, primary_key=True),
    Column("position", Integer, nullable=False),
    Column("group_instance_id", Text),
    Column("client_id", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("session_timeout_ms", BigInteger, nullable=False),
    Column("rebalance_timeout_ms", BigInteger, nullable=False),
    Column("protocols", Json, nullable=False, comment="[[name, metadata in base64], …] in order of preference"),
    Column("assignment", LargeBinary, nullable=False),
    Column("takeover", Integer, nullable=False, server_default="0", comment="its number among the takeovers"),
    Column("subject", Text, nullable=False, server_default="", comment="the caller that joined; empty: not known"),
)

offsets = Table(
    "offsets",
    metadata,
    Column("shard_id", Integer, primary_key=True, autoincrement=False),
    Column("namespace", Name, primary_key=True),
    Column("group_id", Name, primary_key=True),
    Column("topic", Name, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("offset", BigInteger, nullable=False),
    Column("leader_epoch", Integer),
    Column("metadata", Text, nullable=False),
    Column("committed_at_ms", BigInteger, nullable=False),
    Column("expires_at_ms", BigInteger, comment="null: the retention of the server counts"),
    Column("topic_id", BigInteger, nullable=False, server_default="0", comment="topics.topic_id at the commit"),
)

topics = Table(
    "topics",
    metadata,
    Column("shard_id", Integer, primary_key=True, autoincrement=False),
    Column("namespace", Name, primary_key=True),
    Column("topic", Name, primary_key=True),
    Column("partitions", Integer, nullable=False, comment="0: deleted"),
    Column("attributes", Json, nullable=False, comment="[[name, value], …]"),
    Column("revision", BigInteger, nullable=False, server_default="0", comment="topics_revisions at its last change"),
    Column("topic_id", BigInteger, nullable=False, server_default="0", comment="topics_revisions at its last deletion"),
)

topics_revisions = Table(
    "topics_revisions",
    metadata,
    Column("shard_id", Integer, primary_key=True, autoincrement=False),
    Column("namespace", Name, primary_key=True),
    Column("revision", BigInteger, nullable=False, comment="how often its topics have changed in this shard"),
)

# `at` is in the key because Postgres wants the partition key there; SQLite's key is (shard_id, seq).
# What makes `seq` unique and gapless on both is the check of `shards.last_seq` in each append.
group_events = Table(
    "group_events",
    metadata,
    Column("shard_id", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", WallClockMs, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("namespace", Name, nullable=False),
    Column("group_id", Name, nullable=False),
    Column("generation_id", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("payload", Payload, nullable=False),
    Index("group_events_of_group", "shard_id", "namespace", "group_id", "seq"),
    postgresql_partition_by="RANGE (at)",
)

# What users' own transactions have committed through `rota.commit_offsets`, until the shard's owner has taken it in.
# The offset itself stands in `offsets` already. Only Postgres has the next three, and the functions that write them.
side_commits = Table(
    "side_commits",
    metadata,
    Column("shard_id", Integer, primary_key=True, autoincrement=False),
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("namespace", Name, nullable=False),
    Column("group_id", Name, nullable=False),
    Column("topic", Name, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("member_id", Name, nullable=False),
    info={"only": "postgresql"},
)

fence_checks = Table(
    "fence_checks",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("namespace", Name, nullable=False),
    Column("group_id", Name, nullable=False),
    Column("generation_id", Integer, nullable=False),
    Column("member_id", Name),
    Column("offsets", Json, comment="what is to be committed; null where the fence alone is checked"),
    prefixes=["UNLOGGED"],
    info={"only": "postgresql"},
)

# Which roles may use the fence functions in which namespaces; `rota.grant_fences` writes it.
fence_roles = Table(
    "fence_roles",
    metadata,
    Column("role_name", Name, primary_key=True),
    Column("namespace", Name, primary_key=True, comment="* is all of them"),
    info={"only": "postgresql"},
)

journal_readers = Table(
    "journal_readers",
    metadata,
    Column("reader", Text, primary_key=True),
    Column("incarnation", Text, nullable=False, comment="the journal that the positions mean"),
    Column("positions", Text, nullable=False, comment='{"shard id": last sequence number read}, as JSON'),
    Column("updated_at_ms", BigInteger, nullable=False, comment="by this store's clock"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("token_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("digest", Text, nullable=False, comment="SHA-256 of the token, in hexadecimal"),
    Column("grants", Text, nullable=False, comment="its scope: rules, as JSON"),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("expires_at_ms", BigInteger),
    Column("revoked_at_ms", BigInteger),
    Column("note", Text, nullable=False),
    Column("last_used_at_ms", BigInteger, comment="give or take minutes, by the clock of a server"),
)

console_sessions = Table(
    "console_sessions",
    metadata,
    Column("digest", Text, primary_key=True, comment="SHA-256 of the cookie, in hex"),
    Column("sealed", Text, nullable=False, comment="the token, encrypted with a key from the cookie"),
    Column("expires_at_ms", BigInteger, nullable=False),
)


def metadata_for(dialect: str) -> MetaData:
    """The tables as they stand in one engine: SQLite has no schemas."""
    if dialect == "postgresql":
        return metadata
    bare = MetaData()  # a schema of None below means this one's, which is none
    for table in metadata.tables.values():
        if table.info.get("only", dialect) != dialect:
            continue
        table.to_metadata(bare, schema=None)  # type: ignore[arg-type]
    return bare
