"""Operations on a store that are killed between any two statements: whole or not begun, and repeated with success.

Pruning and the deletion of a topic are several transactions: what they did so far is sound, and a repetition goes on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import func, select

from rota.core.group.rows import RowChanges
from rota.core.replica.ports import EPOCHS_SKIPPED, JournalEvent, ShardBatch, StoreRefused
from rota.protocol.errors import ErrorCode
from rota.protocol.ids import NO_SHARD, shard_of
from rota.protocol.messages import (
    CommitOffsets,
    FetchOffsets,
    FetchReply,
    JoinGroup,
    OffsetToCommit,
    Protocol,
    PutTopic,
    Reply,
    Request,
)
from rota.server.runtime.coordinator import LocalCoordinator
from rota.storage.backup import backup, restore
from rota.storage.migrate import check, single_engine, upgrade
from rota.storage.partitions import create_partitions
from rota.storage.schema import group_events as lines
from rota.storage.schema import groups, offsets, shards, store, topics
from rota.storage.store import SqlStore
from rota.storage.urls import parse_store_url
from rota.storage.verify import verify
from tests.contracts.killed import ACTIONS, LEASE_MS, SHARDS, TOPIC, Killed
from tests.contracts.test_pruning import days_ago
from tests.runtime.conftest import NOW
from tests.support.postgres import PostgresServer, binary

GROUPS = [f"g{number}" for number in range(6)]
"""They are in all shards."""
A_DAY = 4
"""Lines of each day and shard, if a journal has old lines."""


class Stage:
    """A store, and as many copies of it as a test needs."""

    def __init__(self, folder: Path, server: PostgresServer | None) -> None:
        self._folder = folder
        self._server = server
        self._numbers = count(1)
        self._copies: list[str] = []
        self.url = server.create_database() if server else self._file("origin")

    def _file(self, name: str) -> str:
        (self._folder / name).mkdir()
        return f"sqlite:///{self._folder / name / 'rota.db'}"

    def copy(self) -> str:
        """A store as the origin is now."""
        if self._server:
            self._copies.append(self._server.create_database(template=self.url.rpartition("/")[2]))
        else:
            self._copies.append(self._file(f"{next(self._numbers)}"))
            origin = Path(self.url.removeprefix("sqlite:///")).parent
            shutil.copytree(origin, Path(self._copies[-1].removeprefix("sqlite:///")).parent, dirs_exist_ok=True)
        return self._copies[-1]

    def drop_copies(self) -> None:
        for url in self._copies:
            if self._server:
                self._server.drop_database(url.rpartition("/")[2])
            else:
                shutil.rmtree(Path(url.removeprefix("sqlite:///")).parent)
        self._copies.clear()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def stage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("PATH", f"{binary('pg_dump').parent}{os.pathsep}{os.environ['PATH']}")
    on_postgres = request.param == "postgres"
    stage = Stage(tmp_path, request.getfixturevalue("postgres_server") if on_postgres else None)
    yield stage
    stage.drop_copies()


@pytest.fixture
def killed(stage: Stage) -> Iterator[Killed]:
    with Killed() as killed:
        yield killed


class Seen(NamedTuple):
    """What a store holds."""

    incarnation: str
    generations: dict[str, int]
    offsets: dict[tuple[str, str], int]
    floors: dict[int, tuple[int, int]]
    """The floors of the generation and of the epoch, by shard."""
    journal: list[tuple[int, int]]
    """Shard and number of each line."""
    firsts: dict[int, int]
    """The number of the first line that is kept, by shard."""
    tombstones: int
    """Records of deleted topics in all shards."""


async def seen(url: str) -> Seen:
    """What is in the store, after a check that it is sound."""
    assert [report.differences async for report in verify(url) if report.differences] == []
    return await read(url)


async def read(url: str) -> Seen:
    engine = single_engine(parse_store_url(url), writes=False)
    async with engine.begin() as connection:
        incarnation = str(await connection.scalar(select(store.c.incarnation)))
        generations = await connection.execute(select(groups.c.group_id, groups.c.generation_id))
        committed = await connection.execute(select(offsets.c.group_id, offsets.c.topic, offsets.c.offset))
        firsts = await connection.execute(
            select(shards.c.shard_id, shards.c.first_seq).where(shards.c.shard_id != NO_SHARD)
        )
        floors = await connection.execute(
            select(shards.c.shard_id, shards.c.generation_floor, shards.c.epoch_floor).where(
                shards.c.shard_id != NO_SHARD
            )
        )
        journal = await connection.execute(select(lines.c.shard_id, lines.c.seq))
        found = Seen(
            incarnation,
            {row[0]: row[1] for row in generations},
            {(row[0], row[1]): row[2] for row in committed},
            {row[0]: (row[1], row[2]) for row in floors},
            sorted((row[0], row[1]) for row in journal),
            {row[0]: row[1] for row in firsts},
            await connection.scalar(select(func.count()).where(topics.c.partitions == 0)) or 0,
        )
    await engine.dispose()
    return found


async def each_point(
    stage: Stage,
    killed: Killed,
    action: str,
    between: Callable[[str], Awaitable[None]],
    after: Callable[[str], Awaitable[None]],
    *,
    argument: Callable[[], list[str]] = list,
    every: int = 1,
    only_outer: bool = False,
) -> int:
    """Kill the action at each point, or at some, and complete it then; returns the number of the last point.

    `between` judges the store after the kill, and `after` once the action was completed.
    """
    for point in count(1, every):
        stage.drop_copies()
        url = stage.copy()
        reached = killed.at(point, action, url, *argument(), only_outer=only_outer)
        try:
            if reached:
                await between(url)
                await ACTIONS[action](url, *argument())
            await after(url)
        except Exception as error:
            error.add_note(f"killed at point {point}: {reached}")
            raise
        if not reached:
            return point - 1
    raise AssertionError("the action never completes")


async def serve(url: str, offset: int) -> None:
    """A server starts, groups commit that progress in two topics, a member joins, the server stops."""
    async with serving(url) as coordinator:
        for topic in (TOPIC, "kept"):
            await succeed(coordinator, PutTopic("default", topic, 1, {}))
            for group_id in GROUPS:
                await succeed(coordinator, a_commit(group_id, topic, offset))
        # The static member's other metadata make another generation.
        protocols = (Protocol("even", b"%d" % offset),)
        await succeed(
            coordinator,
            JoinGroup("default", "led", "worker", protocols, 60_000, 60_000, group_instance_id="i", wait_ms=1),
        )


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[LocalCoordinator]:
    sql = SqlStore(url)
    await sql.open(SHARDS)
    try:
        async with LocalCoordinator(
            sql, shard_count=SHARDS, limits=NOW, replica_id="r", lease_ms=LEASE_MS, steal=True
        ) as coordinator:
            await coordinator.wait_until_ready()
            yield coordinator
    finally:
        await sql.close()


async def succeed(coordinator: LocalCoordinator, request: Request) -> Reply:
    reply = (await coordinator.call(request)).reply
    assert reply.error is ErrorCode.NONE, reply
    return reply


def a_commit(group_id: str, topic: str, offset: int) -> CommitOffsets:
    return CommitOffsets("default", group_id, -1, (OffsetToCommit(topic, 0, offset),))


async def made(stage: Stage) -> Seen:
    """Make the stage's store, with progress 7."""
    await upgrade(stage.url)
    await serve(stage.url, 7)
    return await seen(stage.url)


@pytest.mark.thorough
async def test_a_raise_of_floors_is_whole_or_not_begun(stage: Stage, killed: Killed) -> None:
    before = await made(stage)

    async def after(url: str) -> None:
        now = await seen(url)
        assert now.incarnation != before.incarnation
        assert_raised(now, before)
        assert (now.generations, now.offsets, now.journal) == (before.generations, before.offsets, before.journal)

    async def between(url: str) -> None:
        if await seen(url) != before:
            await after(url)

    assert await each_point(stage, killed, "raise floors", between, after) > 3


def assert_raised(now: Seen, before: Seen) -> None:
    """No shard grants a generation or an epoch that it granted before."""
    for group_id, generation_id in before.generations.items():
        floor, epoch = now.floors[shard_of("default", group_id, SHARDS)]
        assert floor >= generation_id + 10
        assert epoch > EPOCHS_SKIPPED


@pytest.mark.slow
async def test_a_backup_is_whole_or_not_there(stage: Stage, killed: Killed, tmp_path: Path) -> None:
    before = await made(stage)
    targets = (tmp_path / f"{number}.backup" for number in count())
    target = next(targets)

    def another() -> list[str]:
        nonlocal target
        target = next(targets)
        return [str(target)]

    async def restorable(url: str) -> None:
        assert await seen(url) == before
        await restore(url, target, raise_by=10, force=True)
        now = await seen(url)
        assert (now.generations, now.offsets) == (before.generations, before.offsets)

    async def between(url: str) -> None:
        assert await seen(url) == before
        if target.exists():
            await restorable(stage.copy())

    # The refusal to take the place of a file makes the second backup another file.
    assert await each_point(stage, killed, "back up", between, restorable, argument=another) > 3


@pytest.mark.slow
async def test_a_restore_leaves_the_former_store_or_the_backup(stage: Stage, killed: Killed, tmp_path: Path) -> None:
    backed_up = await made(stage)
    source = await backup(stage.url, tmp_path / "source")
    await serve(stage.url, 99)
    former = await seen(stage.url)
    if stage.url.startswith("sqlite"):
        # As after a move to another machine: only the restore itself can note what it replaces.
        Path(f"{stage.url.removeprefix('sqlite:///')}.lock").unlink()
    assert max(former.generations.values()) > max(backed_up.generations.values())

    async def after(url: str) -> None:
        now = await seen(url)
        assert now.incarnation not in (former.incarnation, backed_up.incarnation)
        assert (now.generations, now.offsets) == (backed_up.generations, backed_up.offsets)
        assert_raised(now, former)

    async def between(url: str) -> None:
        path = Path(url.removeprefix("sqlite:///"))
        if url.startswith("sqlite") and not path.exists():
            # The former store has another name by now: a server must not begin an empty one.
            with pytest.raises(StoreRefused):
                await SqlStore(url).open(SHARDS)
            (kept,) = (each for each in path.parent.glob("rota.db.before-*") if each.suffix != ".json")
            assert await seen(f"sqlite:///{kept}") == former
        elif await seen(url) != former:
            await after(url)

    # The statements that fill the new store are many, and of one transaction: some of them are enough.
    for every, only_outer in ((1, True), (61, False)):
        points = await each_point(
            stage,
            killed,
            "restore",
            between,
            after,
            argument=lambda: [str(source)],
            every=every,
            only_outer=only_outer,
        )
        assert points > 3


@pytest.mark.slow
async def test_an_upgrade_is_whole_or_not_begun(stage: Stage, killed: Killed) -> None:
    before = await check(stage.url)
    assert not before.usable

    async def between(url: str) -> None:
        if not (status := await check(url)).up_to_date:
            assert status == before

    async def after(url: str) -> None:
        assert (await check(url)).up_to_date

    assert await each_point(stage, killed, "upgrade", between, after, every=7) > 3


@pytest.mark.thorough
async def test_pruning_leaves_no_hole(stage: Stage, killed: Killed) -> None:
    await upgrade(stage.url)
    await write_old_lines(stage.url)
    before = await read(stage.url)
    kept = [(shard_id, seq) for shard_id, seq in before.journal if seq > 2 * A_DAY]

    async def between(url: str) -> None:
        now = await read(url)
        for shard_id, first in now.firsts.items():
            assert [seq for of, seq in now.journal if of == shard_id] == list(range(first, 3 * A_DAY + 1))
            assert first <= 2 * A_DAY + 1

    async def after(url: str) -> None:
        assert (await seen(url)).journal == kept

    assert await each_point(stage, killed, "prune", between, after) > 3


async def write_old_lines(url: str) -> None:
    """Lines of four days ago, of three days ago, and of today, in two shards."""
    days = [days_ago(4), days_ago(3), days_ago(0)]
    if url.startswith("postgres"):
        engine = single_engine(parse_store_url(url), writes=True)
        async with engine.begin() as connection:
            await create_partitions(connection, [datetime.fromtimestamp(day / 1_000, UTC).date() for day in days])
        await engine.dispose()
    sql = SqlStore(url)
    await sql.open(SHARDS)
    claims = await sql.claim(range(2), "r", "", LEASE_MS)
    for claim in claims:
        events = tuple(
            JournalEvent(seq, day, "n", "g", 0, "offsets_committed", "", {"member_id": "", "offsets": []})
            for seq, day in enumerate((day for day in days for _ in range(A_DAY)), start=1)
        )
        assert await sql.append([ShardBatch(claim.shard_id, claim.epoch, 1, events, RowChanges())]) == []
    await sql.release(claims, "r")
    await sql.close()


@pytest.mark.slow
@pytest.mark.parametrize("registers", [False, True])
async def test_no_progress_survives_an_interrupted_deletion(stage: Stage, killed: Killed, registers: bool) -> None:
    """The deletion is repeated at once, or after a topic of that name was registered."""
    before = await made(stage)
    others = {key: offset for key, offset in before.offsets.items() if key[1] != TOPIC}
    assert len(others) == len(GROUPS)

    async def between(url: str) -> None:
        now = await seen(url)
        assert others.items() <= now.offsets.items() <= before.offsets.items()
        if registers and now.tombstones:
            await assert_new(url, others)

    async def after(url: str) -> None:
        assert (await seen(url)).offsets == others
        await assert_new(url, others)

    assert await each_point(stage, killed, "delete a topic", between, after, only_outer=True) > 3


async def assert_new(url: str, others: dict[tuple[str, str], int]) -> None:
    """A topic of that name is registered, and no group has progress in it."""
    async with serving(url) as coordinator:
        await succeed(coordinator, PutTopic("default", TOPIC, 1, {}))
        for group_id in GROUPS:
            reply = await succeed(coordinator, FetchOffsets("default", group_id))
            assert isinstance(reply, FetchReply)
            found = {each.topic: each.offset for each in reply.offsets if each.offset >= 0}
            assert found == {"kept": others[group_id, "kept"]}
    await seen(url)
