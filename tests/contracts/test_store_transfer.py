"""`rota db copy`: an embedded store goes on in Postgres with all that it holds."""

from __future__ import annotations

import asyncpg
import pytest

from rota.core.group.rows import RowChanges
from rota.core.replica.ports import StoreRefused
from rota.storage.pruning import list_readers, register_reader
from rota.storage.store import SqlStore
from rota.storage.transfer import COPIED, copy_store
from rota.storage.verify import verify
from tests.contracts.builders import a_batch, a_group, a_member, a_topic, an_event, an_offset, image_of
from tests.contracts.restorable import append, claimed, opened, stop

A_DAY_MS = 86_400_000


async def an_embedded_store(url: str) -> SqlStore:
    """A stopped store: a group with a member and an offset, a topic, and a journal of three days."""
    store = await opened(url)
    claim = await claimed(store)
    events = [an_event(seq, at_ms=1_767_225_600_123 + seq * A_DAY_MS) for seq in (1, 2, 3)]
    rows = RowChanges(groups=[a_group()], members=[a_member()], offsets=[an_offset()], topics=[a_topic()])
    assert await store.append([a_batch(claim, *events, after=0, rows=rows)]) == []
    await stop(store)
    await register_reader(url, "nightly")
    return store


async def test_a_copied_store_holds_what_the_embedded_one_held(sqlite_url: str, postgres_url: str) -> None:
    source = await an_embedded_store(sqlite_url)
    before = await opened(sqlite_url)
    image = await image_of(before, 0)
    epoch = (await claimed(before)).epoch
    await stop(before)

    done = await copy_store(sqlite_url, postgres_url)

    copy = await opened(postgres_url)
    assert await image_of(copy, 0) == image
    assert (await claimed(copy)).epoch > epoch
    assert copy.incarnation == source.incarnation == done.incarnation
    assert not copy.went_back
    assert done.rows["group_events"] == 3
    assert [reader.name for reader in await list_readers(postgres_url)] == ["nightly"]
    await copy.close()
    assert (await the_journal(postgres_url)) == (await the_journal(sqlite_url))


async def test_a_copied_store_goes_on(sqlite_url: str, postgres_url: str) -> None:
    await an_embedded_store(sqlite_url)
    await copy_store(sqlite_url, postgres_url)
    copy = await opened(postgres_url)

    await append(copy, await claimed(copy), 4, 9)

    image = await image_of(copy, 0)
    assert (image.last_seq, image.groups[0].generation_id, image.offsets[0].offset) == (4, 4, 9)
    await stop(copy)


async def test_each_day_of_a_copied_journal_has_its_partition(sqlite_url: str, postgres_url: str) -> None:
    await an_embedded_store(sqlite_url)

    await copy_store(sqlite_url, postgres_url)

    connection = await asyncpg.connect(postgres_url)
    names = await connection.fetch("SELECT DISTINCT tableoid::regclass::text AS name FROM rota.group_events")
    await connection.close()
    assert sorted(row["name"] for row in names) == [f"rota.group_events_2026010{day}" for day in (2, 3, 4)]


async def test_nothing_is_copied_from_a_used_store_or_over_another(sqlite_url: str, postgres_url: str) -> None:
    await an_embedded_store(sqlite_url)
    served = await opened(sqlite_url)
    with pytest.raises(StoreRefused, match="another service is using this store"):
        await copy_store(sqlite_url, postgres_url)
    await served.close()
    await copy_store(sqlite_url, postgres_url)

    with pytest.raises(StoreRefused, match="holds a store already"):
        await copy_store(sqlite_url, postgres_url)


async def test_a_copy_takes_this_releases_schema_on_both_sides(sqlite_url: str, postgres_dsn: str) -> None:
    await an_embedded_store(sqlite_url)

    with pytest.raises(StoreRefused, match="rota db upgrade"):
        await copy_store(sqlite_url, postgres_dsn)


@pytest.mark.parametrize("other_way", [False, True])
async def test_a_copy_goes_from_sqlite_to_postgres(sqlite_url: str, postgres_url: str, *, other_way: bool) -> None:
    source, target = (postgres_url, sqlite_url) if other_way else (sqlite_url, sqlite_url)

    with pytest.raises(StoreRefused, match="from SQLite to Postgres"):
        await copy_store(source, target)


def test_every_table_is_copied_or_ends_with_the_store() -> None:
    from rota.storage.schema import metadata_for

    left = {table.name for table in metadata_for("sqlite").sorted_tables} - {table.name for table in COPIED}

    assert left == {"replicas", "console_sessions"}


async def the_journal(url: str) -> list[tuple[int, int, int, int]]:
    return [(r.shard_id, r.events, r.groups, r.pruned) async for r in verify(url)]
