"""Generated races on Postgres: what waits for another transaction ends as in memory, where one step follows another.

Appends, users' commits in SQL and prunings are sent while another transaction is under way. What they return and what
the store has afterwards must be explained by some order of them. An operation that has ended while another was under
way comes before that one; only a pruning, which decides before it waits, may come at any place.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import permutations
from random import Random
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.core.group.rows import RowChanges, ShardImage, SideCommit
from rota.core.replica.ports import JournalEvent, ShardBatch, StoreUnavailable
from rota.pipeline.journal import Position, open_journal
from rota.protocol.errors import ErrorCode, LinesPruned
from rota.storage.append import append_to_postgres
from rota.storage.partitions import create_partitions
from rota.storage.pruning import Pruned, horizon_ms, list_readers, plan, prune
from rota.storage.schema import FENCE_GATE
from rota.storage.store import SqlStore
from rota.testing.memory import MemoryReader, MemoryStore, MemoryTables
from tests.contracts.builders import A_MINUTE_MS, AT_MS, a_batch, an_event, an_offset, image_of
from tests.contracts.conftest import EVENTUALLY_S, SHARD_COUNT
from tests.contracts.test_append_races import BEFORE, CHANGES

GROUPS = ("g", "h")
"""The group of each shard: SQL finds the shard of a group by its name."""
SHARDS = (0, 1)
STEPS = 6
OTHERS = ("renewal", "claim", "the same append", "a commit", "nothing")
SENT = (("append",), ("commit",), ("append",), ("prune", "append"), ("commit",), ("append", "commit"), ("prune",))
TESTS_LOCK = 1
HELD_AT_COMMIT = f"""
    CREATE TABLE public.held (number integer);
    CREATE FUNCTION public.wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock_shared({TESTS_LOCK}); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER last AFTER INSERT ON public.held DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION public.wait_for_the_test();
"""
COMMIT_OFFSETS = "SELECT rota.commit_offsets('default', $1, $2, $3, $4)"
AGAIN = "40001"
TERMINATED = (asyncpg.AdminShutdownError, asyncpg.ConnectionDoesNotExistError, asyncpg.InterfaceError, ConnectionError)
WAITING = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
Named = tuple[int, str, int, str]
State = tuple[list[ShardImage], list[list[JournalEvent]], list[Named], dict[str, dict[int, int]]]
OnTables = Callable[[MemoryTables], Any]


@dataclass(slots=True)
class Operation:
    """Something that was sent to the store, and the same in memory."""

    name: str
    on_tables: OnTables
    task: asyncio.Future[Any]

    @property
    def result(self) -> Any:
        return self.task.result()


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[SqlStore]:
    store = SqlStore(postgres_url, write_timeout_ms=10_000)
    await store.open(SHARD_COUNT)
    yield store
    await store.close()


class Race:
    """Runs the same steps on Postgres concurrently, and in memory one after the other."""

    def __init__(self, store: SqlStore, url: str, seed: int) -> None:
        self.store, self.url, self.seed = store, url, seed
        self.now_ms = int(time.time() * 1000)
        self.chance = Random(seed)
        self.history = list[OnTables]()
        self.tables = self.replayed([])[0]
        self.claims = dict[int, Any]()
        self.side_commits = dict[int, Named]()

    async def begin(self) -> None:
        await self.execute(HELD_AT_COMMIT)
        async with self.store._connections.writing() as connection:
            await create_partitions(connection, [datetime.fromtimestamp(AT_MS / 1000, UTC).date()])
        await self.claim("r-1")
        await self.append([a_batch(self.claims[shard_id], rows=of_shard(BEFORE, shard_id)) for shard_id in SHARDS])
        await self.claim("r-1")

    # --- the twin ------------------------------------------------------------------------------------

    def replayed(self, operations: Sequence[OnTables]) -> tuple[MemoryTables, list[Any]]:
        """Tables on which these operations followed the history, and the results of these."""
        tables = MemoryTables(lambda: self.now_ms)
        tables.open(SHARD_COUNT)
        results = [each(tables) for each in (*self.history, *operations)]
        return tables, results[len(self.history) :]

    async def both(self, on_store: Any, on_tables: OnTables) -> None:
        """One step for each that nothing else meets."""
        self.tables, (result,) = self.replayed([on_tables])
        self.history.append(on_tables)
        assert await on_store == result

    async def claim(self, replica_id: str) -> None:
        """Each shard belongs to this replica, in both."""
        arguments = (SHARDS, replica_id, "", A_MINUTE_MS)
        claims = await self.store.claim(*arguments, steal=True)
        self.claims = {each.shard_id: each for each in claims}
        await self.both(at_once(claims), lambda tables: tables.claim(*arguments, steal=True))

    async def append(self, batches: Sequence[ShardBatch]) -> None:
        await self.both(self.store.append(batches), self.appending(batches))

    def appending(self, batches: Sequence[ShardBatch]) -> OnTables:
        """A side commit has another number in memory: in Postgres one that fails takes a number, too."""
        names = self.side_commits

        def append(tables: MemoryTables) -> list[int]:
            known = [(named(side), side.side_id) for side in tables.side_commits(SHARDS)]
            ids = {side_id: pop(known, name) for side_id, name in names.items()}
            taken = [[ids[side_id] for side_id in each.rows.side_commits_taken] for each in batches]
            rows = [replace(each.rows, side_commits_taken=some) for each, some in zip(batches, taken, strict=True)]
            return tables.append([replace(each, rows=of) for each, of in zip(batches, rows, strict=True)])

        return append

    # --- a step --------------------------------------------------------------------------------------

    async def step(self, number: int) -> str:
        """Another transaction is under way while the others are sent, and is committed behind them."""
        place = self.seed * STEPS + number
        other, sent = OTHERS[place % len(OTHERS)], SENT[place % len(SENT)]
        await self.prepare()
        self.side_commits = {side.side_id: named(side) for side in await self.store.side_commits(SHARDS)}
        shards = self.chance.choice([(0,), (1,), SHARDS])
        batches = [await self.a_batch(shard_id, place) for shard_id in shards]
        commit = self.a_commit(shards[-1])
        async with self.store._connections.writing() as connection:
            under_way = await self.interfere(connection, other, batches, self.a_commit(shards[0]))
            waiting = await connection.scalar(WAITING)
            tasks = [self.send(each, batches, commit) for each in sent]
            async with asyncio.timeout(EVENTUALLY_S):
                while (left := [each for each in tasks if not each.task.done()]) and (
                    await connection.scalar(WAITING) < waiting + len(left)
                ):
                    continue  # each look waits for the server
            early = [each for each in tasks if each.task.done()]
        late = [each for each in tasks if each not in early]
        await asyncio.gather(*(each.task for each in (*under_way, *late)))

        met = f"{other} with {' and '.join(f'{each.name}: {each.result}' for each in (*early, *late))}"
        happened = [[each for each in order if each.result is not None] for order in orders(early, under_way, late)]
        await self.explain(happened, met)
        await self.claim("r-1")
        return met

    async def prepare(self) -> None:
        """Old lines, progress by SQL that the owner has not taken over, and another position of a reader."""
        for shard_id in SHARDS:
            if self.chance.random() < 0.4:
                old = [an_event(0, at_ms=AT_MS)] * self.chance.randint(1, 3)
                await self.append([a_batch(self.claims[shard_id], *old)])
                self.claims[shard_id] = replace(
                    self.claims[shard_id], last_seq=self.claims[shard_id].last_seq + len(old)
                )
        for _ in range(self.chance.choice([0, 0, 1, 2])):
            commit = self.a_commit(self.chance.choice(SHARDS))
            await self.both(self.committed(commit), commit.on_tables)
        if self.chance.random() < 0.3:
            await self.bookmark(self.chance.choice(["slow", "late"]))

    async def bookmark(self, name: str) -> None:
        """The reader has read some shards up to here or there, and has not begun the others."""
        begun = self.chance.choice([(), (0,), (1,), SHARDS])
        read = {shard_id: self.chance.randint(0, self.claims[shard_id].last_seq) for shard_id in begun}
        await asyncio.to_thread(open_journal(self.url).bookmark, name, Position(self.store.incarnation, read))
        reader = MemoryReader(name, read)
        await self.both(at_once(None), lambda tables: tables.readers.update({name: reader}))

    async def interfere(
        self, connection: AsyncConnection, other: str, batches: Sequence[ShardBatch], commit: Commit
    ) -> list[Operation]:
        first = batches[0].shard_id
        match other:
            case "renewal":
                claim = self.claims[first]
                renewals = await self.store._leases.renew(connection, [claim], "r-1", A_MINUTE_MS)
                return [Operation(other, lambda tables: tables.renew([claim], "r-1", A_MINUTE_MS), at_once(renewals))]
            case "claim":
                arguments = ([first], "r-2", "", A_MINUTE_MS)
                claims = await self.store._leases.claim(connection, *arguments, steal=True, known_epochs=None)
                return [Operation(other, lambda tables: tables.claim(*arguments, steal=True), at_once(claims))]
            case "the same append":
                written = await append_to_postgres(connection, batches)
                refused = [each.shard_id for each in batches if each.shard_id not in written]
                return [Operation(other, self.appending(batches), at_once(refused))]
            case "a commit":
                await connection.execute(text(f"SELECT pg_advisory_xact_lock({TESTS_LOCK})"))
                task = asyncio.create_task(self.committed(commit, is_held=True))
                while not task.done() and not await connection.scalar(WAITING):
                    continue  # each look waits for the server
                if task.done():  # It was refused before the others are sent.
                    await self.both(task, commit.on_tables)
                    return []
                return [Operation(other, commit.on_tables, task)]
        return []

    def send(self, name: str, batches: Sequence[ShardBatch], commit: Commit) -> Operation:
        match name:
            case "append":
                append = asyncio.create_task(self.store.append(batches))
                return Operation(name, self.appending(batches), append)
            case "commit":
                return Operation(name, commit.on_tables, asyncio.create_task(self.committed(commit)))
            case _:
                pruned = asyncio.create_task(self.pruned())
                return Operation(name, lambda tables: in_order(pruned_tables(tables)), pruned)

    async def explain(self, possible: list[list[Operation]], met: str) -> None:
        """Continue with the order that explains what was returned and what the store has now."""
        found = await self.state_of(self.store)
        for order in possible:
            tables, results = self.replayed([each.on_tables for each in order])
            if (
                results == [each.result for each in order]
                and await self.state_of(MemoryStore(int, tables=tables)) == found
            ):
                self.check_readers(self.tables.first_seqs(), tables.first_seqs())
                self.history += [each.on_tables for each in order]
                self.tables = tables
                return
        assert found == await self.state_of(MemoryStore(int, tables=tables)), met
        pytest.fail(f"{met}: in memory {results}")

    def check_readers(self, before: dict[int, int], after: dict[int, int]) -> None:
        """No line was deleted that a reader has yet to read: a rule of its own, since both stores use one plan."""
        for reader in self.tables.readers.values():
            for shard_id in SHARDS:
                read = reader.positions.get(shard_id, 0)
                assert after[shard_id] <= max(before[shard_id], read + 1), f"{reader.name} in {shard_id}"

    # --- what is sent --------------------------------------------------------------------------------

    async def a_batch(self, shard_id: int, place: int) -> ShardBatch:
        """Rows of one kind, side commits that the owner knows of; at times with an epoch or a place of before."""
        rows = of_shard([*CHANGES.values()][(place + shard_id) % len(CHANGES)], shard_id)
        generation_id = self.generation_of(shard_id) + self.chance.choice([0, 1, 1])
        rows = replace(rows, groups=[replace(each, generation_id=generation_id) for each in rows.groups])
        known = [side_id for side_id, name in self.side_commits.items() if name[0] == shard_id]
        if known and self.chance.random() < 0.7:
            taken = known[: self.chance.randint(1, len(known))]
            progress = [an_offset(0, 50, GROUPS[shard_id])]
            rows = replace(rows, side_commits_taken=taken, offsets=progress, offsets_deleted=[])
        claim = self.claims[shard_id]
        after = claim.last_seq + self.chance.choice([0, 0, 0, 0, 0, 1, -1])
        line = an_event(0, at_ms=self.now_ms)
        batch = a_batch(claim, line, after=after, rows=rows)
        return replace(batch, epoch=claim.epoch - self.chance.choice([0, 0, 0, 0, 0, 1]))

    def generation_of(self, shard_id: int) -> int:
        return self.tables.load(shard_id).groups[0].generation_id

    def a_commit(self, shard_id: int) -> Commit:
        """Of a member of the group, as a rule in its generation."""
        generation_id = self.generation_of(shard_id) + self.chance.choice([0, 0, 0, 0, 0, 1])
        partition, offset = self.chance.randint(0, 1), self.chance.randrange(100)
        return Commit(shard_id, generation_id, self.chance.choice(["m-3", "m-3", "m-0"]), partition, offset)

    async def committed(self, commit: Commit, *, is_held: bool = False) -> ErrorCode | None:
        """The outcome of the user's transaction, repeated if Postgres asks for that; None if it was terminated."""
        connection = await asyncpg.connect(self.url)
        try:
            while True:
                try:
                    async with connection.transaction():
                        await connection.execute(COMMIT_OFFSETS, *commit.arguments)
                        if is_held:
                            await connection.execute("INSERT INTO public.held VALUES (1)")
                except TERMINATED:
                    return None
                except asyncpg.PostgresError as error:
                    if error.sqlstate != AGAIN:
                        return ErrorCode(str(error).partition(":")[0])
                else:
                    return ErrorCode.NONE
        finally:
            await connection.close()

    async def pruned(self) -> Pruned:
        while True:
            try:
                return in_order(await prune(self.url, keep_days=1))
            except StoreUnavailable:
                continue  # It waits for 200 ms at most.

    async def hold_gates(self) -> None:
        """Sessions of the owner's own role hold the gate of each shard: an append has each of them terminated."""
        lock = self.chance.choice(["pg_advisory_lock", "pg_advisory_lock_shared"])
        holders = [await asyncpg.connect(self.url) for _ in SHARDS]
        for shard_id, holder in zip(SHARDS, holders, strict=True):
            await holder.execute(f"SELECT {lock}($1, $2)", FENCE_GATE, shard_id)
        await self.append([a_batch(self.claims[each], rows=of_shard(CHANGES["group"], each)) for each in SHARDS])
        for holder in holders:
            holder.terminate()
        await self.claim("r-1")

    async def execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self.url)
        await connection.execute(statement)
        await connection.close()

    async def state_of(self, store: Any) -> State:
        """Rows, lines, side commits and readers, without what the clocks and the sequence of Postgres say."""
        images = [await image_of(store, shard_id) for shard_id in SHARDS]
        lines = [await lines_of(store, shard_id) for shard_id in SHARDS]
        beside = sorted(named(side) for side in await store.side_commits(SHARDS))
        if store is self.store:
            readers = {each.name: dict(each.positions) for each in await list_readers(self.url)}
        else:
            readers = {each.name: each.positions for each in store.tables.readers.values()}
        return [without_times(image) for image in images], lines, beside, readers


@dataclass(frozen=True, slots=True)
class Commit:
    """A member's progress, committed in a transaction of its user's."""

    shard_id: int
    generation_id: int
    member_id: str
    partition: int
    offset: int

    @property
    def arguments(self) -> tuple[Any, ...]:
        row = an_offset(self.partition, self.offset)
        given = {name: getattr(row, name) for name in ("topic", "partition", "offset", "leader_epoch", "metadata")}
        return GROUPS[self.shard_id], self.generation_id, self.member_id, json.dumps([given])

    def on_tables(self, tables: MemoryTables) -> ErrorCode:
        group_id = GROUPS[self.shard_id]
        fence = tables.check_fence(self.shard_id, "default", group_id, self.generation_id, self.member_id)
        if fence is ErrorCode.NONE:
            tables.commit_beside(self.shard_id, an_offset(self.partition, self.offset, group_id), self.member_id)
        return fence


def orders(early: list[Operation], under_way: list[Operation], late: list[Operation]) -> Iterator[list[Operation]]:
    """The orders that explain the operations: a pruning at any place."""
    prunings = [each for each in (*early, *late) if each.name == "prune"]
    first, last = ([each for each in some if each not in prunings] for some in (early, late))
    for before in permutations(first):
        for after in permutations(last):
            others = [*before, *under_way, *after]
            for place in range(len(others) + 1) if prunings else [0]:
                yield [*others[:place], *prunings, *others[place:]]


def named(side: SideCommit) -> Named:
    return side.shard_id, side.topic, side.partition, side.member_id


def pop(known: list[tuple[Named, int]], name: Named) -> int:
    """The first number under this name, which is removed; 0 if there is none."""
    place = next((place for place, (each, _) in enumerate(known) if each == name), None)
    return 0 if place is None else known.pop(place)[1]


def at_once(result: Any) -> asyncio.Future[Any]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(result)
    return future


def in_order(pruned: Pruned) -> Pruned:
    return replace(pruned, up_to=dict(pruned.up_to), held_by=tuple(sorted(pruned.held_by)))


def of_shard(rows: RowChanges, shard_id: int) -> RowChanges:
    """The same changes of the shard's own group."""
    group_id = GROUPS[shard_id]
    return replace(
        rows,
        groups=[replace(each, group_id=group_id) for each in rows.groups],
        members=[replace(each, group_id=group_id) for each in rows.members],
        members_deleted=[(namespace, group_id, name) for namespace, _, name in rows.members_deleted],
        offsets=[each._replace(group_id=group_id) for each in rows.offsets],
        offsets_deleted=[(namespace, group_id, topic, part) for namespace, _, topic, part in rows.offsets_deleted],
    )


async def lines_of(store: Any, shard_id: int) -> list[JournalEvent]:
    """All lines that are not pruned."""
    try:
        return list(await store.read_events(shard_id, 0, 1_000))
    except LinesPruned as pruned:
        return list(await store.read_events(shard_id, pruned.first_revision - 1, 1_000))


def without_times(image: ShardImage) -> ShardImage:
    offsets = (row._replace(committed_at_ms=0) for row in image.offsets)
    return replace(image, offsets=tuple(sorted(offsets, key=lambda row: row[:4])))


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 200))])
async def test_what_waits_ends_as_one_after_the_other(seed: int, store: SqlStore, postgres_url: str) -> None:
    race = Race(store, postgres_url, seed)
    await race.begin()

    for number in range(STEPS):
        await race.step(number)
    if seed % 5 == 0:
        await race.hold_gates()

    assert await race.state_of(store) == await race.state_of(MemoryStore(int, tables=race.tables))


def pruned_tables(tables: MemoryTables) -> Pruned:
    """Prune the tables as `prune` does a store, keeping a day."""
    old = tables.last_before(horizon_ms(tables._clock_ms(), 1))
    pruned = plan(old, tables.first_seqs(), list(tables.readers.values()))
    for shard_id, end in pruned.up_to.items():
        tables.prune_shard(shard_id, end)
    return pruned
