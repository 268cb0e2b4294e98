"""Stores that stall again and again: a cancelled write leaves no descriptor, no thread, no session and no lock."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import threading
import types
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from rota.core.replica.ports import Replica, StoreRefused, StoreUnavailable
from rota.protocol.messages import Act
from rota.storage import sqlite
from rota.storage.access import TokenTable
from rota.storage.pruning import prune, register_reader
from rota.storage.sqlite import SqliteConnections, SqliteDriver, SqliteDrivers
from rota.storage.store import SqlStore
from tests.contracts.builders import a_batch, image_of
from tests.contracts.conftest import EVENTUALLY_S, SHARD_COUNT
from tests.support.postgres import PostgresServer

WRITE_TIMEOUT_MS = 200
ME = Replica("r-1", "http://one")
ACT = Act("a test", "")


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """A server collects so rarely that a leak which waits for the collector lasts for hours."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.fixture
async def embedded(sqlite_url: str) -> AsyncIterator[SqlStore]:
    store = SqlStore(sqlite_url, write_timeout_ms=WRITE_TIMEOUT_MS)
    await store.open(SHARD_COUNT)
    yield store
    await store.close()


class Intruder:
    """Another user of the file. It waits for the lock in a thread of its own: the event loop has to go on."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=EVENTUALLY_S, check_same_thread=False)

    async def lock(self) -> None:
        await asyncio.to_thread(self._connection.execute, "BEGIN IMMEDIATE")

    def unlock(self) -> None:
        self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def intruder(sqlite_url: str) -> Iterator[Intruder]:
    with closing(Intruder(path_of(sqlite_url))) as intruder:
        yield intruder


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def open_logs(url: str) -> int:
    """How many connections to the file there are. SQLite keeps the descriptors of the file itself for later ones."""
    log = f"{path_of(url).resolve()}-wal"
    return sum(os.path.realpath(f"/proc/self/fd/{each}") == log for each in os.listdir("/proc/self/fd"))


def driver_threads() -> int:
    return sum("_connection_worker_thread" in thread.name for thread in threading.enumerate())


async def append(store: SqlStore, _url: str) -> None:
    (claim,) = await store.claim([0], ME.replica_id, ME.address, 60_000, steal=True)
    await store.append([a_batch(claim, after=claim.last_seq)])


WRITES: dict[str, Callable[[SqlStore, str], Coroutine[Any, Any, Any]]] = {
    "a registration": lambda store, _url: store.register(ME, 5_000),
    "an append": append,
    "a command's transaction": lambda _store, url: TokenTable(url).revoke("no-such-token", 1, ACT),
    "a reader's": lambda _store, url: register_reader(url, "slow"),
}


@pytest.mark.parametrize("write", WRITES)
async def test_a_cancelled_write_leaves_neither_lock_nor_file(
    embedded: SqlStore, sqlite_url: str, intruder: Intruder, write: str
) -> None:
    await WRITES[write](embedded, sqlite_url)
    await prune(sqlite_url, keep_days=1)
    await intruder.lock()
    intruder.unlock()
    logs, kept = open_logs(sqlite_url), list[BaseException]()

    async def unlock_after(seconds: float) -> None:
        await asyncio.sleep(seconds)
        intruder.unlock()

    for step in range(12):
        await intruder.lock()
        cancelled_s = 0.005 * step
        # The thread gets the lock when its caller is gone, and before it is closed.
        unlocking = asyncio.create_task(unlock_after(cancelled_s + 0.001))
        try:
            async with asyncio.timeout(cancelled_s):
                await WRITES[write](embedded, sqlite_url)
        except (TimeoutError, StoreUnavailable) as error:
            # Its traceback keeps the frames, and these the cursors of the driver.
            kept.append(error)
        await unlocking

        await intruder.lock()
        intruder.unlock()
    assert kept
    await append(embedded, sqlite_url)
    await until(lambda: open_logs(sqlite_url) <= logs, "the files of cancelled writes are closed")


@pytest.mark.thorough
async def test_a_locked_store_is_served_again_without_a_leak(
    embedded: SqlStore, sqlite_url: str, intruder: Intruder
) -> None:
    await append(embedded, sqlite_url)
    await intruder.lock()
    intruder.unlock()
    acknowledged = (await image_of(embedded, 0)).last_seq
    before = open_logs(sqlite_url), driver_threads()
    outcomes: Counter[str] = Counter()
    is_over = False

    async def keep_writing(number: int) -> None:
        while not is_over:
            try:
                await embedded.register(Replica(f"r-{number}", ""), 5_000)
            except StoreUnavailable:
                outcomes["unavailable"] += 1
            else:
                outcomes["done"] += 1
            await asyncio.sleep(0.007 * number)

    writers = [asyncio.create_task(keep_writing(number)) for number in range(1, 8)]
    for stall in range(1, 7):
        await intruder.lock()
        await more(outcomes, "unavailable", 2 * stall)
        intruder.unlock()
        await more(outcomes, "done", 1)
    is_over = True
    await asyncio.gather(*writers)

    await append(embedded, sqlite_url)
    assert (await image_of(embedded, 0)).last_seq == acknowledged + 1
    await until(lambda: (open_logs(sqlite_url), driver_threads()) == before, "nothing is left behind")


async def test_a_thread_that_hangs_has_no_second_one_beside_it(embedded: SqlStore, sqlite_url: str) -> None:
    """A disk that does not answer cannot be interrupted."""
    await append(embedded, sqlite_url)
    threads, answers = driver_threads(), threading.Event()
    writer = the_writer(embedded)
    assert writer._opened is not None
    writer._opened.set_trace_callback(lambda _statement: answers.wait(EVENTUALLY_S) and None)

    began = monotonic()
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await embedded.register(ME, 5_000)
    assert (driver_threads(), monotonic() - began < EVENTUALLY_S) == (threads, True)
    assert await embedded.owners()

    answers.set()
    await until_served(embedded)
    assert driver_threads() == threads
    assert the_writer(embedded) is not writer


@pytest.mark.thorough
async def test_a_thread_that_hangs_keeps_the_lock_of_the_store(
    embedded: SqlStore, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that opened the file meanwhile would write beside that thread."""
    await append(embedded, sqlite_url)
    answers = threading.Event()
    writer = the_writer(embedded)
    assert writer._opened is not None
    writer._opened.set_trace_callback(lambda _statement: answers.wait(EVENTUALLY_S) and None)
    with pytest.raises(StoreUnavailable):
        await embedded.register(ME, 5_000)
    monkeypatch.setattr(sqlite, "_JOIN_TIMEOUT_S", 0.05)

    await embedded.close()
    with pytest.raises(StoreRefused, match="another service is using this store"):
        await SqlStore(sqlite_url).open(SHARD_COUNT)

    answers.set()
    await asyncio.to_thread(writer._thread.join, EVENTUALLY_S)
    await embedded.close()
    await embedded.open(SHARD_COUNT)


async def test_cancelled_reads_leave_no_file_open(embedded: SqlStore, sqlite_url: str) -> None:
    await append(embedded, sqlite_url)
    await asyncio.gather(*(image_of(embedded, 0) for _ in range(4)))
    before = open_logs(sqlite_url), driver_threads()
    for steps in range(40):
        reading = asyncio.create_task(embedded.read_events(0, 0, 100))
        for _ in range(steps):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    await asyncio.gather(*(image_of(embedded, 0) for _ in range(4)))
    await until(lambda: (open_logs(sqlite_url), driver_threads()) <= before, "nothing is left behind")


async def test_a_close_that_is_cancelled_ends_the_caller_and_the_connection(sqlite_url: str) -> None:
    """The pool logs an error of a closing connection and goes on, so a cancellation must not become one."""
    drivers, path = SqliteDrivers(), str(path_of(sqlite_url))
    driver = await drivers.connect(path, timeout=1.0, check_same_thread=False)
    assert driver._opened is not None
    ending = asyncio.create_task(driver.close())
    await asyncio.sleep(0)
    while not is_closed(driver._opened):
        continue  # the event loop must not go on before the thread has closed it
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending

    async with asyncio.timeout(EVENTUALLY_S):
        await (await drivers.connect(path, timeout=1.0)).close()
    assert await drivers.join()


def is_closed(connection: sqlite3.Connection) -> bool:
    try:
        return connection.total_changes < 0
    except sqlite3.ProgrammingError:
        return True


CALLS = WRITES | {
    "upkeep": lambda store, _url: store.maintain(),
    "a count": lambda store, _url: store.count_lines(),
    "a shard's state": lambda store, _url: image_of(store, 0),
    "pruning": lambda _store, url: prune(url, keep_days=1),
}


SLOW = ("a count", "a shard's state", "pruning")


@pytest.fixture(params=["sqlite_url", "postgres_url"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.mark.parametrize(
    "call", [*WRITES, "upkeep", *(pytest.param(each, marks=pytest.mark.thorough) for each in SLOW)]
)
async def test_a_call_cancelled_at_any_await_ends_as_cancelled(url: str, call: str) -> None:
    """A cancellation that a clean-up replaces by its own error is lost, and the server's stop waits for ever."""
    store = SqlStore(url)
    await store.open(SHARD_COUNT)
    await append(store, url)
    for at in range(1, 500):
        calling = asyncio.create_task(cancelled_at(at, CALLS[call](store, url)))
        await asyncio.wait([calling])
        if not calling.cancelled():
            calling.result()
            break
    assert 2 < at < 499
    await append(store, url)
    await store.close()


@types.coroutine
def cancelled_at(at: int, call: Coroutine[Any, Any, Any]) -> Generator[Any, Any, None]:
    """Run the call, and cancel its task in the await of this number."""
    go_on: Callable[[], Any] = partial(call.send, None)
    for number in count(1):
        try:
            waited_for = go_on()
        except StopIteration:
            assert number <= at, f"cancelled in await {at}, the call went on to its end"
            return
        task = asyncio.current_task()
        assert task is not None
        if number == at:
            task.cancel()
        try:
            go_on = partial(call.send, (yield waited_for))
        except BaseException as error:
            go_on = partial(call.throw, error)


@pytest.mark.thorough
async def test_locked_tables_leave_no_session_behind(postgres_server: PostgresServer, postgres_url: str) -> None:
    store = SqlStore(postgres_url, write_timeout_ms=WRITE_TIMEOUT_MS)
    await store.open(SHARD_COUNT)
    await append(store, postgres_url)
    outcomes: Counter[str] = Counter()
    is_over = False

    async def keep_writing(write: Callable[[], Awaitable[Any]]) -> None:
        while not is_over:
            try:
                await write()
            except StoreUnavailable:
                outcomes["unavailable"] += 1
            else:
                outcomes["done"] += 1

    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: append(store, postgres_url),
        lambda: store.register(ME, 5_000),
        store.owners,
        store.read_tokens,
    ]
    writers = [asyncio.create_task(keep_writing(call)) for call in calls * 3]
    other = SqlStore(postgres_url)
    await other.open(SHARD_COUNT)
    for _ in range(4):
        async with other._writing() as connection:
            await connection.exec_driver_sql("LOCK TABLE rota.shards, rota.replicas IN ACCESS EXCLUSIVE MODE")
            await more(outcomes, "unavailable", 5)
        await more(outcomes, "done", 5)
    await other.close()
    is_over = True
    await asyncio.gather(*writers)

    database = postgres_url.rpartition("/")[2]
    sessions = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}'"
    in_transaction = f"{sessions} AND state LIKE 'idle in transaction%'"
    await append(store, postgres_url)
    assert int(postgres_server.execute(sessions)) <= 8
    await until(lambda: postgres_server.execute(in_transaction) == "0", "no session keeps a transaction")
    await store.close()
    await until(lambda: postgres_server.execute(sessions) == "0", "no session is left")


async def test_a_lock_of_our_own_is_one_that_a_restart_ends(embedded: SqlStore) -> None:
    async with embedded._connections.writing():
        assert await embedded.needs_restart()


@pytest.mark.thorough
async def test_a_file_that_was_replaced_asks_for_a_restart(embedded: SqlStore, sqlite_url: str) -> None:
    path = path_of(sqlite_url)
    path.rename(f"{path}.old")
    assert await embedded.needs_restart()


@pytest.mark.thorough
async def test_a_store_no_process_can_use_asks_for_no_restart(embedded: SqlStore, sqlite_url: str) -> None:
    with closing(sqlite3.connect(path_of(sqlite_url))) as other:
        other.execute("DROP TABLE shards")
    assert not await embedded.needs_restart()


@pytest.mark.thorough
async def test_a_postgres_that_takes_others_writes_asks_for_a_restart(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    store = SqlStore(postgres_url, write_timeout_ms=WRITE_TIMEOUT_MS)
    await store.open(SHARD_COUNT)
    other = SqlStore(postgres_url)
    await other.open(SHARD_COUNT)
    async with other._writing() as connection:
        await connection.exec_driver_sql("LOCK TABLE rota.shards IN ACCESS EXCLUSIVE MODE")
        assert not await store.needs_restart()
    assert await store.needs_restart()
    await other.close()
    await store.close()
    postgres_server.execute(f'DROP DATABASE "{postgres_url.rpartition("/")[2]}"')
    assert not await store.needs_restart()


def the_writer(store: SqlStore) -> SqliteDriver:
    connections = store._connections
    assert isinstance(connections, SqliteConnections)
    return connections._drivers[0]._opened[-1]


async def until_served(store: SqlStore) -> None:
    async with asyncio.timeout(EVENTUALLY_S):
        while True:
            try:
                await store.register(ME, 5_000)
            except StoreUnavailable:
                continue
            return


async def more(outcomes: Counter[str], outcome: str, count: int) -> None:
    so_far = outcomes[outcome]
    await until(lambda: outcomes[outcome] >= so_far + count, f"{count} more calls are {outcome}")


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(EVENTUALLY_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"not within {EVENTUALLY_S} s: {what}")
