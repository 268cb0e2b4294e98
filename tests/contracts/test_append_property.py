"""Any sequence of appends leaves the same shard in memory and in SQLite."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rota.group.rows import NO_QUARANTINE, Quarantine, RowChanges, ShardImage
from rota.replica.ports import JournalEvent, ShardBatch, ShardStore
from rota.storage.store import SqlStore
from rota.testing.memory import MemoryStore
from tests.contracts.builders import a_group, a_member, a_topic, an_event, an_offset

SHARDS = 2
# Few names, so that rows meet one another.
NAMES = st.sampled_from(["a", "b", "ü"])
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
NUMBERS = st.integers(0, 2**31 - 1)

GROUPS = st.builds(
    a_group,
    NAMES,
    state=st.sampled_from(["Empty", "Stable", "Dead"]),
    generation_id=NUMBERS,
    leader_id=st.none() | TEXT,
    rebalance_reason=TEXT,
    rebalance_cause=TEXT,
    frozen_until_ms=st.none() | st.integers(0, 2**40),
    frozen_reason=TEXT,
    quarantine=st.just(NO_QUARANTINE)
    | st.builds(
        Quarantine,
        st.integers(0, 9),
        st.integers(1, 9),
        st.integers(0, 2**40),
        st.lists(st.tuples(TEXT, st.integers(1, 9), st.integers(0, 2**40)), max_size=3).map(tuple),
        st.lists(st.tuples(TEXT, st.integers(0, 2**40)), max_size=3).map(tuple),
    ),
    leaving=st.lists(st.tuples(TEXT, st.integers(0, 2**40)), max_size=2).map(tuple),
)
MEMBERS = st.builds(
    a_member, NAMES, NAMES, st.integers(0, 3), group_instance_id=st.none() | TEXT, assignment=st.binary(max_size=8)
)
OFFSETS = st.builds(
    an_offset,
    st.integers(0, 2),
    NUMBERS,
    NAMES,
    leader_epoch=st.none() | NUMBERS,
    metadata=TEXT,
    topic_id=st.integers(0, 2),
)
TOPICS = st.builds(
    a_topic,
    NAMES | st.just("documents"),
    NUMBERS,
    topic_id=st.integers(0, 2),
    attributes=st.lists(st.tuples(TEXT, TEXT), max_size=2).map(tuple),
)
CHANGES = st.builds(
    RowChanges,
    groups=st.lists(GROUPS, max_size=3, unique_by=lambda row: row.group_id),
    members=st.lists(MEMBERS, max_size=4, unique_by=lambda row: (row.group_id, row.image.member_id)),
    members_deleted=st.lists(st.tuples(st.just("default"), NAMES, NAMES), max_size=3, unique=True),
    offsets=st.lists(OFFSETS, max_size=4, unique_by=lambda row: (row.group_id, row.partition)),
    offsets_deleted=st.lists(
        st.tuples(st.just("default"), NAMES, st.just("documents"), st.integers(0, 2)), max_size=3, unique=True
    ),
    topics=st.lists(TOPICS, max_size=2, unique_by=lambda row: row.topic),
)
# What each shard is given in one append: how far from the right epoch and place, how many lines, which rows.
BATCHES = st.tuples(st.sampled_from([0, 0, 0, -1]), st.sampled_from([0, 0, 0, 1, -1]), st.integers(0, 3), CHANGES)
APPENDS = st.lists(st.dictionaries(st.integers(0, SHARDS - 1), BATCHES, min_size=1), max_size=6)

Given = dict[int, tuple[int, int, int, RowChanges]]
Outcome = tuple[list[list[int]], list[ShardImage], list[list[JournalEvent]]]


async def outcome(store: ShardStore, appends: list[Given]) -> Outcome:
    """The store's answer to each append, and its content in the end."""
    await store.open(SHARDS)
    claims = {c.shard_id: c for c in await store.claim(range(SHARDS), "r-1", "http://one", 60_000, steal=True)}
    ends = dict.fromkeys(range(SHARDS), 0)
    answers = []
    for append in appends:
        batches = []
        for shard_id, (epoch_off, place_off, lines, rows) in append.items():
            first_seq = ends[shard_id] + 1 + place_off
            events = tuple(an_event(first_seq + n) for n in range(lines))
            batches.append(ShardBatch(shard_id, claims[shard_id].epoch + epoch_off, first_seq, events, rows))
        refused = await store.append(batches)
        ends |= {b.shard_id: b.first_seq - 1 + len(b.events) for b in batches if b.shard_id not in refused}
        answers.append(refused)
    images = await store.load(range(SHARDS))
    journals = [await store.read_events(shard_id, 0, 100) for shard_id in range(SHARDS)]
    await store.close()
    return answers, images, journals


class SqliteFiles:
    """A new file with the schema for each example."""

    def __init__(self, template: bytes, folder: Path) -> None:
        self._template = template
        self._folder = folder

    def url(self) -> str:
        for old in self._folder.iterdir():
            old.unlink()
        path = self._folder / "rota.db"
        path.write_bytes(self._template)
        return f"sqlite:///{path}"


@pytest.fixture
def fresh(sqlite_template: bytes, tmp_path: Path) -> SqliteFiles:
    return SqliteFiles(sqlite_template, tmp_path)


@pytest.mark.thorough
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(appends=APPENDS)
def test_any_appends_leave_the_same_in_memory_and_in_sqlite(fresh: SqliteFiles, appends: list[Given]) -> None:
    in_memory = asyncio.run(outcome(MemoryStore(lambda: 0), appends))

    in_sqlite = asyncio.run(outcome(SqlStore(fresh.url()), appends))

    assert in_sqlite == in_memory
