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

AnyType = TypeEngine[Any] | type[TypeEngine[Any]]


def _key(name: str, type_: AnyType, comment: str | None = None) -> Column[Any]:
    return Column(name, type_, primary_key=True, autoincrement=False, comment=comment)


def _required(name: str, type_: AnyType, comment: str | None = None, default: str | None = None) -> Column[Any]:
    return Column(name, type_, nullable=False, comment=comment, server_default=default)


store = Table(
    "store",
    metadata,
    _key("id", Integer),
    _required("shard_count", Integer),
    _required("incarnation", Text, "random id of this journal: its sequence numbers mean this one"),
    _required("created_at_ms", BigInteger),
    CheckConstraint("id = 1", name="store_is_one_row"),
)

shards = Table(
    "shards",
    metadata,
    _key("shard_id", Integer),
    _required("replica_id", Text),
    _required("address", Text),
    _required("epoch", BigInteger),
    _required("lease_until_ms", BigInteger, "by this store's clock"),
    _required("last_seq", BigInteger, "the journal's last entry of this shard"),
    _required("first_seq", BigInteger, "the journal's first entry of this shard that was not pruned", "1"),
    _required("claimed_epoch", BigInteger, "the epoch that claimed_seq means", "0"),
    _required("claimed_seq", BigInteger, "the journal's last entry when that epoch began", "0"),
    Column("timeline", Text, comment="of the server at the last renewal; null where it is unknown"),
    _required("generation_floor", Integer, "no group of this shard grants this generation or an earlier one", "0"),
    _required("epoch_floor", BigInteger, "no claim gets this epoch or an earlier one", "0"),
)

replicas = Table(
    "replicas",
    metadata,
    _key("replica_id", Text),
    _required("address", Text, "where clients reach it"),
    _required("peer_address", Text, "where other replicas reach it"),
    _required("grpc_address", Text, "where clients reach it over gRPC", ""),
    _required("worker_http_port", Integer, "shared with no worker beside it", "0"),
    _required("worker_grpc_port", Integer, "shared with no worker beside it", "0"),
    _required("seen_until_ms", BigInteger, "by this store's clock"),
)

# Each key begins with the shard: a shard's rows load as one range, and a statement that carries a
# shard's id cannot touch the rows of another, whatever else it names.
groups = Table(
    "groups",
    metadata,
    _key("shard_id", Integer),
    _key("namespace", Name),
    _key("group_id", Name),
    _required("state", Text),
    _required("generation_id", Integer),
    _required("join_generation_id", Integer),
    Column("protocol_type", Text),
    Column("protocol_name", Text),
    Column("leader_id", Text),
    _required("state_since_ms", BigInteger),
    _required("rebalance_reason", Text),
    _required("rebalance_by", Text),
    _required("takeovers", Integer, "of members, in this generation", "0"),
    _required("rebalance_cause", Text, "a code; empty: none", ""),
    Column("frozen_until_ms", BigInteger, comment="null: not frozen"),
    _required("frozen_reason", Text, default=""),
    _required("leaving", Text, "JSON: members that may leave, and until when", ""),
    _required("quarantine", Text, "JSON: rule, suspects and quarantined units", ""),
    Index("groups_by_name", "namespace", "group_id"),
)

members = Table(
    "members",
    metadata,
    _key("shard_id", Integer),
    _key("namespace", Name),
    _key("group_id", Name),
    _key("member_id", Name),
    _required("position", Integer),
    Column("group_instance_id", Text),
    _required("client_id", Text),
    _required("host", Text),
    _required("session_timeout_ms", BigInteger),
    _required("rebalance_timeout_ms", BigInteger),
    _required("protocols", Json, "[[name, metadata in base64], …] in order of preference"),
    _required("assignment", LargeBinary),
    _required("takeover", Integer, "its number among the takeovers", "0"),
    _required("subject", Text, "the caller that joined; empty: not known", ""),
)

offsets = Table(
    "offsets",
    metadata,
    _key("shard_id", Integer),
    _key("namespace", Name),
    _key("group_id", Name),
    _key("topic", Name),
    _key("partition", Integer),
    _required("offset", BigInteger),
    Column("leader_epoch", Integer),
    _required("metadata", Text),
    _required("committed_at_ms", BigInteger),
    Column("expires_at_ms", BigInteger, comment="null: the retention of the server counts"),
    _required("topic_id", BigInteger, "topics.topic_id at the commit", "0"),
)

topics = Table(
    "topics",
    metadata,
    _key("shard_id", Integer),
    _key("namespace", Name),
    _key("topic", Name),
    _required("partitions", Integer, "0: deleted"),
    _required("attributes", Json, "[[name, value], …]"),
    _required("revision", BigInteger, "how many changes of topics the namespace had then", "0"),
    _required("topic_id", BigInteger, "revision of the last deletion of the name", "0"),
)

# `at` is in the key because Postgres wants the partition key there; SQLite's key is (shard_id, seq).
# What makes `seq` unique and gapless on both is the check of `shards.last_seq` in each append.
group_events = Table(
    "group_events",
    metadata,
    _key("shard_id", Integer),
    _key("seq", BigInteger),
    _key("at", WallClockMs),
    _required("epoch", BigInteger),
    _required("namespace", Name),
    _required("group_id", Name),
    _required("generation_id", Integer),
    _required("kind", Text),
    _required("reason", Text),
    _required("payload", Payload),
    Index("group_events_of_group", "shard_id", "namespace", "group_id", "seq"),
    postgresql_partition_by="RANGE (at)",
)

# What users' own transactions have committed through `rota.commit_offsets`, until the shard's owner has taken it in.
# The offset itself stands in `offsets` already. Only Postgres has the next three, and the functions that write them.
side_commits = Table(
    "side_commits",
    metadata,
    _key("shard_id", Integer),
    Column("id", BigInteger, Identity(), primary_key=True),
    _required("namespace", Name),
    _required("group_id", Name),
    _required("topic", Name),
    _required("partition", Integer),
    _required("member_id", Name),
    info={"only": "postgresql"},
)

fence_checks = Table(
    "fence_checks",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    _required("namespace", Name),
    _required("group_id", Name),
    _required("generation_id", Integer),
    Column("member_id", Name),
    Column("offsets", Json, comment="what is to be committed; null where the fence alone is checked"),
    prefixes=["UNLOGGED"],
    info={"only": "postgresql"},
)

# Which roles may use the fence functions in which namespaces; `rota.grant_fences` writes it.
fence_roles = Table(
    "fence_roles",
    metadata,
    _key("role_name", Name),
    _key("namespace", Name, "* is all of them"),
    info={"only": "postgresql"},
)

journal_readers = Table(
    "journal_readers",
    metadata,
    _key("reader", Text),
    _required("incarnation", Text, "the journal that the positions mean"),
    _required("positions", Text, '{"shard id": last sequence number read}, as JSON'),
    _required("updated_at_ms", BigInteger, "by this store's clock"),
)

tokens = Table(
    "tokens",
    metadata,
    _key("token_id", Text),
    _required("name", Text),
    _required("digest", Text, "SHA-256 of the token, in hexadecimal"),
    _required("grants", Text, "its scope: rules, as JSON"),
    _required("created_at_ms", BigInteger),
    Column("expires_at_ms", BigInteger),
    Column("revoked_at_ms", BigInteger),
    _required("note", Text),
    Column("last_used_at_ms", BigInteger, comment="give or take minutes, by the clock of a server"),
)

console_sessions = Table(
    "console_sessions",
    metadata,
    _key("digest", Text, "SHA-256 of the cookie, in hex"),
    _required("sealed", Text, "the token, encrypted with a key from the cookie"),
    _required("expires_at_ms", BigInteger),
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
