"""All tables: what a row is, and what each column means, in which unit and from which lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from rota.protocol.causes import MEMBER_ENDS

INT, LONG, DOUBLE, TEXT, YES = pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.bool_()
TIME = pa.timestamp("us", tz="UTC")
LONGS = pa.list_(pa.int64())


@dataclass(frozen=True, slots=True)
class Column:
    """`doc` describes it; times are UTC, `_ms` are milliseconds."""

    name: str
    type_: pa.DataType
    doc: str


@dataclass(frozen=True, slots=True)
class Table:
    """`grain`: what one row is. `sources`: the kinds of lines that it is made of; its fact sees no others."""

    name: str
    grain: str
    sources: tuple[str, ...]
    columns: tuple[Column, ...]
    not_included: str = ""
    """What one may look for in vain, because the lines do not say it."""
    exactly: str = ""
    """Where a row begins and ends, and whatever else a second program needs to make the same rows of the lines."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(c.name, c.type_, metadata={"comment": c.doc}) for c in self.columns])


BRONZE = Table(
    "bronze/lines",
    "one line of the journal, as it was read; `shard_id` and `seq` name it",
    (),
    (
        Column("shard_id", INT, "its shard; -1 where it is about tokens, which belong to none"),
        Column("seq", LONG, "its number in the shard, from 1 and without a gap"),
        Column("at", TIME, "when the owner decided it, by the owner's clock"),
        Column("epoch", LONG, "the owner's epoch"),
        Column("namespace", TEXT, "namespace of the group or topic; empty without either"),
        Column("group_id", TEXT, "the group; empty where it is about none"),
        Column("generation_id", INT, "the group's generation"),
        Column("kind", TEXT, "what happened"),
        Column("reason", TEXT, "why, in the coordinator's words"),
        Column("payload", TEXT, "what else belongs to it, as the JSON of rota.core.group.records"),
    ),
)

_GROUP = (
    Column("namespace", TEXT, "namespace of the group"),
    Column("group_id", TEXT, "the group"),
)

REBALANCES = Table(
    "rebalances",
    "one step of a group to another generation, or the attempt at one",
    (
        "rebalance_started",
        "generation_completed",
        "assignment_synced",
        "assignment_failed",
        "group_emptied",
        "group_deleted",
        "member_joined",
        *MEMBER_ENDS,
    ),
    (
        *_GROUP,
        Column("generation_id", INT, "the generation that it led to; null where it led to none"),
        Column("cause", TEXT, "why it began: a code, see below; later releases may write others"),
        Column("reason", TEXT, "the same in the coordinator's words"),
        Column("by", TEXT, "the member that caused it; empty if none did"),
        Column("from_state", TEXT, "the group's state before"),
        Column("started_at", TIME, "when the join phase began"),
        Column("completed_at", TIME, "when the join phase was over; null where it never was"),
        Column("ended_at", TIME, "when all members could fetch a share, or when it was given up"),
        Column("join_ms", LONG, "how long the join phase lasted; null where it was not completed"),
        Column("sync_ms", LONG, "how long the leader took to assign after it; null where it did not"),
        Column("duration_ms", LONG, "from began to ended"),
        Column("members_before", INT, "members of the generation before"),
        Column("members_after", INT, "members of the generation that it led to; null where it led to none"),
        Column("joined", INT, "newcomers since the generation before"),
        Column("left", INT, "members that left since then"),
        Column("expired", INT, "members that were late since then: session, rejoin or sync"),
        Column("removed", INT, "members that were removed since then"),
        Column("replaced", INT, "static members that came back under a new id since then"),
        Column("leader_id", TEXT, "the leader of the generation that it led to"),
        Column("protocol_type", TEXT, "the group's protocol type"),
        Column("protocol_name", TEXT, "the protocol that the members chose"),
        Column("outcome", TEXT, "how it ended: one of the words below; empty while it lasts"),
    ),
)

GROUP_STATES = Table(
    "group_states",
    "one stay of a group in a state",
    (
        "rebalance_started",
        "generation_completed",
        "assignment_synced",
        "group_emptied",
        "group_deleted",
        "member_joined",
        "offsets_committed",
    ),
    (
        *_GROUP,
        Column("state", TEXT, "Empty, PreparingRebalance, CompletingRebalance, Stable or Dead"),
        Column("generation_id", INT, "the generation when it came there"),
        Column("from_at", TIME, "since when"),
        Column("to_at", TIME, "until when"),
        Column("ms", LONG, "for how long"),
    ),
)

LEADER_TENURES = Table(
    "leader_tenures",
    "one time that one member led a group",
    ("generation_completed", "group_emptied", "group_deleted", *MEMBER_ENDS),
    (
        *_GROUP,
        Column("leader_id", TEXT, "the leader"),
        Column("from_at", TIME, "when the first generation that it led was completed, or when it replaced the leader"),
        Column("to_at", TIME, "when it went, or another followed it"),
        Column("ms", LONG, "for how long"),
        Column("generations", INT, "how many join phases ended with it as the leader"),
        Column("gap_ms", LONG, "time without a leader before it; null for the group's first leader"),
        Column("ended_by", TEXT, "left, expired, removed, replaced (came back under a new id), succeeded or emptied"),
    ),
    exactly="A tenure begins with a `generation_completed` that names another leader than the one there is, or with "
    "the "
    "`member_fenced` that replaces the leader: its new id leads on, with 0 `generations` at first. A "
    "`generation_completed` that names the same leader adds one to `generations`. It ends with the line by which "
    "the leader goes or is succeeded, or with `group_emptied` or `group_deleted` (`emptied`). `gap_ms` is the "
    "time from the end of the tenure before, 0 for a successor.",
)

FAILOVERS = Table(
    "failovers",
    "one time that a replica took a shard",
    ("shard_acquired", "shard_released"),
    (
        Column("shard_id", INT, "the shard"),
        Column("epoch", LONG, "the owner's epoch from then on"),
        Column("from_replica", TEXT, "the previous owner; empty for the first one"),
        Column("to_replica", TEXT, "the new owner"),
        Column("at", TIME, "when it was taken"),
        Column(
            "gap_ms",
            LONG,
            "time without an owner; null where the owner before did not release it, so its lease ran out",
        ),
        Column("graceful", YES, "whether the owner before had released it"),
    ),
    "time without an owner after an owner's death: a lease that runs out leaves no event",
    "Each `shard_acquired` is a row; `from_replica` is the replica of the one before in that shard. It is "
    "graceful if a `shard_released` stands between the two, and `gap_ms` is the time since that.",
)

MEMBERS = Table(
    "members",
    "one time that one member was in a group",
    ("member_joined", "member_updated", "generation_completed", *MEMBER_ENDS),
    (
        *_GROUP,
        Column("member_id", TEXT, "the member"),
        Column("group_instance_id", TEXT, "its instance id, if it is a static member"),
        Column("client_id", TEXT, "its own name"),
        Column("host", TEXT, "where it connected from"),
        Column("session_timeout_ms", LONG, "how long it might be silent"),
        Column("rebalance_timeout_ms", LONG, "how long it might take to join again"),
        Column("joined_at", TIME, "when it joined"),
        Column("ended_at", TIME, "when it went"),
        Column("ms", LONG, "for how long it was there"),
        Column("first_generation_id", INT, "its first generation; null if it never was in one"),
        Column("last_generation_id", INT, "its last"),
        Column("end", TEXT, "left, expired, removed, replaced or forgotten (its shard moved while it joined)"),
        Column("end_reason", TEXT, "why, in words"),
        Column(
            "sessions_in_hour",
            INT,
            "its times in the group that ended within the hour up to this end, this one included; those count together "
            "that have the same instance id or, without one, the same client id",
        ),
        Column("median_session_ms", LONG, "half of these lasted no longer"),
        Column("flapping", INT, "the flapping score, in join-leave cycles an hour: how many of these also began in it"),
    ),
    exactly="A time begins with `member_joined`, or with the `member_fenced` that puts a new id in an old one's "
    "place; it "
    "ends with the next line by which that id goes. What a member says of itself is in its `member_joined` and in "
    "each `member_updated` since; a new id begins with what the old one said. `first_generation_id` is the first "
    "that a `generation_completed` names it in; a new id, if the old one was in any, begins with the group's "
    "generation then. `last_generation_id` is the group's generation before the line that ends it: the last one "
    "in the payload of a `generation_completed`, `assignment_synced`, `generation_raised`, `group_emptied` or "
    "`group_deleted`. The first line of a group under another epoch ends (`forgotten`) the members that no "
    "`generation_completed` has named, under this id or one that it replaced; their `end_reason` is `its join "
    "phase was forgotten`. The hour is up to the latest `ended_at` in the group so far, ends counted in the order "
    "of their lines, and members that one line ends in the order in which they joined; `flapping` counts those "
    "that began later than an hour before that. Of an even number `median_session_ms` takes the lower of the two "
    "in the middle.",
)

HEARTBEATS = Table(
    "heartbeats",
    "the heartbeats of one member, from one of the journal's statistics",
    ("session_stats",),
    (
        *_GROUP,
        Column("member_id", TEXT, "the member"),
        Column("client_id", TEXT, "its own name"),
        Column("session_timeout_ms", LONG, "its session timeout at that time"),
        Column("from_at", TIME, "since when they were counted"),
        Column("to_at", TIME, "until when"),
        Column("heartbeats", LONG, "how many"),
        Column("gaps", LONGS, "how many gaps between two signs of life fell into each class of core.group.records"),
        Column("max_gap_ms", LONG, "the longest gap"),
        Column("p50_ms", LONG, "half of the gaps were no longer (upper bound of the class)"),
        Column("p99_ms", LONG, "99 of 100 were no longer (upper bound of the class)"),
        Column("p999_ms", LONG, "999 of 1,000 were no longer (upper bound of the class)"),
    ),
    exactly="There are 96 classes, and `gaps` has a number for each. Gaps of 0 to 3 ms have a class each, which bears "
    "that number; from class 4 on, there are four to each doubling: with `q = class / 4` (whole) and `r` the "
    "rest, the upper bound of a class is `(r + 5) * 2^(q - 1) - 1` ms. `heartbeats` is the sum of `gaps`. A "
    "quantile is the upper bound of the first class at which the sum so far reaches that share of it; null where "
    "it is 0.",
)

TIMEOUT_ADVICE = Table(
    "timeout_advice",
    "which session timeout a group should have, by all that was counted up to the last of a day (UTC)",
    ("session_stats", "member_joined", "member_expired", "group_deleted"),
    (
        *_GROUP,
        Column("at", TIME, "when the last of that day was counted"),
        Column("session_timeout_ms", LONG, "the longest of its members' then: for so long a death goes unnoticed"),
        Column("recommended_ms", LONG, "the one for 0.01 false expiries a member and day; null below 500 gaps"),
        Column("false_expiries_per_day", DOUBLE, "silences longer than the session timeout, a member and day"),
        Column("recommended_false_per_day", DOUBLE, "the same with the one recommended"),
        Column("detection_saved_ms", LONG, "how much sooner a death is noticed with that one; below 0 where later"),
        Column("gaps", LONGS, "how many gaps that a heartbeat ended fell into each class of rota.core.group.records"),
        Column("longest_kept_ms", LONG, "the longest of these"),
        Column(
            "late_ms",
            LONGS,
            "the silences that ended a session though the client (instance id, or client id and host) was back within "
            "10 s or its session timeout: how long until it was back, rounded up to a timeout",
        ),
        Column("late", LONGS, "how many there were of each of these"),
        Column("longest_gap_ms", LONG, "the longest silence of either kind"),
        Column("member_ms", LONG, "for how long members were counted, added up"),
    ),
)

ASSIGNMENTS = Table(
    "assignments",
    "one assignment of a group",
    ("assignment_synced", "member_fenced", "group_emptied", "group_deleted"),
    (
        *_GROUP,
        Column("generation_id", INT, "its generation"),
        Column("at", TIME, "when it was made"),
        Column("leader_id", TEXT, "the leader that made it"),
        Column("protocol_name", TEXT, "by which strategy"),
        Column("resync", YES, "whether it was changed without a join phase"),
        Column(
            "round",
            INT,
            "1, or which round of a step: the members are the same, and it hands on what the round before took away",
        ),
        Column("members", INT, "how many members there were"),
        Column("units", INT, "how many units were assigned; null where the bytes could not be read"),
        Column("moves", INT, "units with another last holder"),
        Column("forced_moves", INT, "of these, units with a last holder that had gone"),
        Column("least_moves", INT, "the fewest moves to an assignment as even as this one; never above `moves`"),
        Column("revoked", INT, "units taken from members that stayed"),
        Column("added", INT, "units that no member had before"),
        Column("unassigned", INT, "units that a member had before and none has now"),
        Column("in_motion", INT, "of these, units that a cooperative group's next round may hand on"),
        Column("imbalance", INT, "units of the fullest member less units of the emptiest"),
        Column("stddev", DOUBLE, "standard deviation of units per member"),
    ),
)

OFFSETS = Table(
    "offsets",
    "the progress of one partition in one hour",
    ("offsets_committed", "offsets_deleted", "group_deleted"),
    (
        *_GROUP,
        Column("topic", TEXT, "the topic"),
        Column("partition", INT, "the partition"),
        Column("hour", TIME, "the hour"),
        Column("first_offset", LONG, "what the first commit said"),
        Column("last_offset", LONG, "what the last one said"),
        Column("commits", LONG, "how many commits there were"),
        Column("first_at", TIME, "when the first one was"),
        Column("last_at", TIME, "when the last one was"),
        Column("rate_per_s", DOUBLE, "offsets a second between the two; null with one commit"),
        Column("stall_ms", LONG, "the longest time without a commit, counted from the commit before the hour, too"),
        Column("went_back", LONG, "how many commits were lower than the one before"),
    ),
    "the lag, for a commit says how far the group is and not where the partition ends",
    "A row is complete with the partition's next commit in another hour, by the time of its line, be it an "
    "earlier one by another owner's clock; or with the line that deletes the partition's offsets or the group, "
    "after which no commit is before the next one. A partition's first commit counts 0 for `stall_ms`. "
    "`went_back` also compares with the commit before the hour. The rate is null also where `last_at` is not "
    "after `first_at`.",
)

FENCED = Table(
    "fenced",
    "the refused requests of one former member in one hour",
    ("request_fenced", *MEMBER_ENDS),
    (
        *_GROUP,
        Column("member_id", TEXT, "the member that the request named"),
        Column("group_instance_id", TEXT, "its instance id, if any"),
        Column("operation", TEXT, "the request: heartbeat, sync, commit or leave"),
        Column("error", TEXT, "the error code of the answer"),
        Column("hour", TIME, "the hour"),
        Column("first_at", TIME, "when the first of them was"),
        Column("times", LONG, "in how many generations (the journal keeps one a member, operation and generation)"),
        Column("after_ms", LONG, "how long after the member had gone the first one came; null where that is not known"),
    ),
    exactly="The rows of an hour are complete with the group's first refused request in another hour. `after_ms` "
    "counts "
    "from the last line before by which that member went. Its going is forgotten when another member of the group "
    "goes more than 24 hours later.",
)

TOPICS = Table(
    "topics",
    "one change of a registered topic",
    ("topic_changed",),
    (
        Column("namespace", TEXT, "namespace of the topic"),
        Column("topic", TEXT, "the topic"),
        Column("at", TIME, "when it changed"),
        Column("partitions", INT, "its partitions from then on; 0 where it was deleted"),
    ),
)

LEADER_CHANGED = Table(
    "leader_changed",
    "one generation of a group that has another leader than the generation before",
    ("leader_changed",),
    (
        *_GROUP,
        Column("generation_id", INT, "the generation"),
        Column("at", TIME, "when its join phase was completed"),
        Column("former_leader_id", TEXT, "the leader of the generation before; empty if it was removed"),
        Column("leader_id", TEXT, "the new leader"),
        Column("cause", TEXT, "why the group rebalanced: a code, as in `rebalances`"),
        Column("reason", TEXT, "the same in the coordinator's words"),
    ),
)

ADMINISTERED = Table(
    "administered",
    "one act of an administrator: on a group, a topic or a token",
    ("administered",),
    (
        Column("shard_id", INT, "the shard of the line; -1 where it is about tokens, which belong to none"),
        Column("seq", LONG, "the number of the line in the shard; the lines before it say what the act changed"),
        Column("at", TIME, "when it was done"),
        Column("namespace", TEXT, "namespace of the group or topic; empty for a token"),
        Column("group_id", TEXT, "the group; empty for a topic or a token"),
        Column("generation_id", INT, "the group's generation then; 0 without a group"),
        Column("operation", TEXT, "the request, such as RemoveMember or CreateToken"),
        Column("actor", TEXT, "the administrator's name, as the server knows it"),
        Column("target", TEXT, "the member, the topic, or a token's name and id; empty where that is the group"),
        Column("note", TEXT, "the administrator's note"),
        Column("origin", TEXT, "the address or machine that the request came from"),
    ),
)

ADVISOR = Table(
    "advisor",
    "one step of a group (the assignments that follow from one change) as one strategy would have made it; written "
    "anew by `rota pipeline advise`",
    ("assignment_synced", "member_joined", "member_updated", "generation_completed", "group_emptied", *MEMBER_ENDS),
    (
        *_GROUP,
        Column("generation_id", INT, "the step's first generation"),
        Column("at", TIME, "when that was assigned"),
        Column("assignor", TEXT, "the strategy; `(actual)` is what really happened"),
        Column("members", INT, "how many members there were"),
        Column("units", INT, "how many units there were"),
        Column("moves", LONG, "units that change their holder"),
        Column("forced_moves", INT, "of these, units with a holder that had gone"),
        Column("least_moves", INT, "the fewest possible, as in `assignments`"),
        Column("revoked", INT, "units taken from members that stay"),
        Column(
            "rounds",
            INT,
            "join phases that it takes: 2 where units are given up first and handed on afterwards, 0 for a resync",
        ),
        Column(
            "paused_units",
            INT,
            "units that stop in the step: all, or in a resync and under a cooperative strategy those that move",
        ),
        Column("imbalance", INT, "units of the fullest member less units of the emptiest"),
        Column("stddev", DOUBLE, "standard deviation of units per member"),
    ),
)

WHAT_IFS = Table(
    "what_ifs",
    "what one change of a group would have come to over all of its history; written anew by `rota pipeline advise`",
    (
        "assignment_synced",
        "rebalance_started",
        "member_joined",
        "member_updated",
        "generation_completed",
        "group_emptied",
        *MEMBER_ENDS,
    ),
    (
        *_GROUP,
        Column("at", TIME, "when the last step of its history was"),
        Column("change", TEXT, "none (what really happened), strategy, static membership or session timeout"),
        Column("value", TEXT, "to which strategy or session timeout (ms); empty for the others"),
        Column("rebalances", LONG, "how many steps there are"),
        Column("join_phases", LONG, "how many join phases they take"),
        Column("moves", LONG, "units that change their holder"),
        Column("paused_unit_ms", LONG, "for how long units stand still while members agree: units times milliseconds"),
        Column(
            "waiting_unit_ms",
            LONG,
            "for how long units wait for a member that is silent, or away and expected back: units times milliseconds",
        ),
        Column("false_expiries", DOUBLE, "sessions that end though the client is back soon"),
    ),
    "for how long a static member was away that came back in time",
)

UNREADABLE = Table(
    "unreadable",
    "one line that could not be read: it is in no other table, or not in all that it belongs to",
    (),
    (
        Column("shard_id", INT, "its shard"),
        Column("seq", LONG, "its number in the shard"),
        Column("at", TIME, "when the owner decided it"),
        *_GROUP,
        Column("kind", TEXT, "its kind"),
        Column("error", TEXT, "the missing or malformed field of its payload"),
    ),
)

GOLD: dict[str, Table] = {
    table.name: table
    for table in (
        REBALANCES,
        GROUP_STATES,
        LEADER_TENURES,
        FAILOVERS,
        MEMBERS,
        HEARTBEATS,
        TIMEOUT_ADVICE,
        ASSIGNMENTS,
        OFFSETS,
        FENCED,
        TOPICS,
        LEADER_CHANGED,
        ADMINISTERED,
        ADVISOR,
        UNREADABLE,
        WHAT_IFS,
    )
}
UNFOLDED = ("advisor", "what_ifs")
"""Made when they are asked for."""
FOLDED = tuple(name for name in GOLD if name not in UNFOLDED)
"""The tables that each batch of lines adds rows to."""

OPEN = ("rebalances", "group_states", "leader_tenures", "members", "timeout_advice", "offsets", "fenced")
"""The tables with rows that have no end yet: until they have one, they are in `current`."""


def struct_of(table: Table) -> pa.DataType:
    """One row of the table as the value of a column."""
    return pa.struct([(column.name, column.type_) for column in table.columns])


CURRENT = Table(
    "current",
    "one group after the last of its lines that was read; `group_id` is empty for a shard itself and for the topics of "
    "a namespace",
    (),
    (
        Column("shard_id", INT, "the group's shard"),
        *_GROUP,
        Column("state", TEXT, "Empty, PreparingRebalance, CompletingRebalance, Stable or Dead"),
        Column("since_at", TIME, "since when; null if its lines do not say so"),
        Column("generation_id", INT, "its generation"),
        Column("protocol_type", TEXT, "its protocol type"),
        Column("protocol_name", TEXT, "the protocol that its members chose"),
        Column("leader_id", TEXT, "the leader; empty if it has none"),
        Column("leader_since_at", TIME, "since when it leads"),
        Column("member_count", INT, "how many members it has, those that are joining included"),
        Column("seq", LONG, "the number of its last line"),
        Column(
            "open",
            pa.struct([(name, pa.list_(struct_of(GOLD[name]))) for name in OPEN]),
            "its rows that have no end yet, by table: members that are in the group, the hour of each partition's last "
            "commit, the rebalance under way",
        ),
        Column("carry", TEXT, "what the fold of its next line needs: JSON"),
    ),
)


class Line(NamedTuple):
    """One line of the journal. `payload` is still text: many lines need not be parsed."""

    shard_id: int
    seq: int
    at_ms: int
    epoch: int
    namespace: str
    group_id: str
    generation_id: int
    kind: str
    reason: str
    payload: str


LINES = pa.schema([(column.name, column.type_) for column in BRONZE.columns])
"""The columns of the journal."""


def lines_of(batch: pa.RecordBatch | pa.Table) -> Iterator[Line]:
    """The rows of a batch that has (at least) the columns of `LINES`."""
    columns = [
        [us // 1000 for us in batch.column(name).cast(pa.int64()).fill_null(0).to_pylist()]
        if name == "at"
        else batch.column(name).to_pylist()
        for name in LINES.names
    ]
    return map(Line._make, zip(*columns, strict=True))


def wide_schema(*tables: Table) -> pa.Schema:
    """The schema of rows of several tables in one frame: `fact`, the name of the table, and the columns of all."""
    return pa.schema(
        [("fact", TEXT), *{column.name: column.type_ for table in tables for column in table.columns}.items()]
    )


def wide(rows: list[tuple[str, tuple[Any, ...]]], schema: pa.Schema) -> pa.Table:
    """Rows of several tables, each with the name of its table, in one frame of this schema."""
    by_table: dict[str, list[tuple[Any, ...]]] = {}
    for name, values in rows:
        by_table.setdefault(name, []).append(values)
    frames = [schema.empty_table()]
    for name, mine in by_table.items():
        columns = (CURRENT if name == CURRENT.name else GOLD[name]).columns
        arrays = {c.name: pa.array(each, c.type_) for c, each in zip(columns, zip(*mine, strict=True), strict=True)}
        frames.append(pa.table({"fact": pa.array([name] * len(mine), TEXT), **arrays}))
    return pa.concat_tables(frames, promote_options="default")


FACTS = wide_schema(*(GOLD[name] for name in FOLDED))
ADVICE = wide_schema(*(GOLD[name] for name in UNFOLDED))

_SPARK_TYPES = {INT: "int", LONG: "bigint", DOUBLE: "double", YES: "boolean", TEXT: "string", TIME: "timestamp"}


def ddl(schema: pa.Schema) -> str:
    """The same schema in Spark's words."""
    return ", ".join(f"`{field.name}` {_spark_type(field.type)}" for field in schema)


def _spark_type(type_: Any) -> str:
    if pa.types.is_list(type_):
        return f"array<{_spark_type(type_.value_type)}>"
    if pa.types.is_struct(type_):
        return f"struct<{', '.join(f'`{field.name}`: {_spark_type(field.type)}' for field in type_)}>"
    return _SPARK_TYPES[type_]
