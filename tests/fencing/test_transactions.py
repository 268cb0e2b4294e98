"""The decorator and the hook for SQLAlchemy's sessions, sync and async, on the real functions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from rota.fencing.errors import StaleTransaction
from rota.fencing.transactions import Holder, commit_offsets, fence_sessions, fenced, stale
from rota.protocol.messages import JoinReply, OffsetToCommit
from rota.server.runtime.coordinator import LocalCoordinator
from tests.fencing.conftest import fetched, joined, replaced

WRITE = text("INSERT INTO ledger VALUES (1, 'me')")
COUNT = text("SELECT count(*) FROM ledger")
PROGRESS = [OffsetToCommit("transfers", 0, 7, metadata="so far")]


class Member(NamedTuple):
    namespace: str
    group_id: str
    generation_id: int
    member_id: str


def held_by(who: JoinReply) -> Holder:
    return Holder("default", "tellers", who.generation_id, who.member_id)


def as_teller(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://postgres@", f"postgresql+{driver}://teller@")


@pytest.fixture
async def sessions(dsn: str) -> AsyncIterator[async_sessionmaker[AsyncSession]]:
    engine = create_async_engine(as_teller(dsn, "asyncpg"))
    yield async_sessionmaker(engine)
    await engine.dispose()


@pytest.fixture
def sync_sessions(dsn: str) -> Iterator[sessionmaker[Session]]:
    engine = create_engine(as_teller(dsn, "psycopg"))
    yield sessionmaker(engine)
    engine.dispose()


async def test_a_decorated_function_commits_while_it_is_current(
    coordinator: LocalCoordinator, sessions: async_sessionmaker[AsyncSession]
) -> None:
    me = await joined(coordinator)

    @fenced(sessions, lambda: held_by(me))
    async def work(session: AsyncSession, answer: str) -> str:
        await session.execute(WRITE)
        await session.execute(commit_offsets(held_by(me), PROGRESS))
        return answer

    assert await work("done") == "done"
    assert await fetched(coordinator) == {("transfers", 0): 7}


async def test_a_decorated_function_that_is_overtaken_writes_nothing(
    coordinator: LocalCoordinator, sessions: async_sessionmaker[AsyncSession]
) -> None:
    me = await joined(coordinator)

    @fenced(sessions, lambda: held_by(me))
    async def work(session: AsyncSession) -> None:
        await session.execute(WRITE)
        await replaced(coordinator, me)

    with pytest.raises(StaleTransaction, match="ILLEGAL_GENERATION"):
        await work()
    with pytest.raises(StaleTransaction):
        await work()
    async with sessions() as session:
        assert await session.scalar(COUNT) == 0


async def test_a_sync_function_is_fenced_as_well(
    coordinator: LocalCoordinator, sync_sessions: sessionmaker[Session]
) -> None:
    me = await joined(coordinator)

    @fenced(sync_sessions, lambda: held_by(me))
    def work(session: Session) -> int:
        session.execute(WRITE)
        return session.scalar(COUNT) or 0

    first = work()
    await replaced(coordinator, me)
    with pytest.raises(StaleTransaction):
        work()

    assert first == 1


async def test_only_retriable_failures_of_postgres_are_retried(
    coordinator: LocalCoordinator, sync_sessions: sessionmaker[Session]
) -> None:
    me = await joined(coordinator)
    tried = []

    @fenced(sync_sessions, lambda: held_by(me), attempts=3)
    def work(session: Session, sqlstate: str, failures: int) -> None:
        tried.append(sqlstate)
        session.execute(WRITE)
        if len(tried) <= failures:
            session.execute(text(f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{sqlstate}'; END $$"))

    work("40001", 2)
    repeated = len(tried)
    with pytest.raises(DBAPIError):
        work("40001", 99)
    gave_up_after = len(tried) - repeated
    with pytest.raises(DBAPIError):
        work("22012", 99)

    assert (repeated, gave_up_after, tried.count("22012")) == (3, 3, 1)
    with sync_sessions() as session:
        assert session.scalar(COUNT) == 1


async def test_all_attempts_act_for_the_same_holder(
    coordinator: LocalCoordinator,
    sessions: async_sessionmaker[AsyncSession],
    sync_sessions: sessionmaker[Session],
) -> None:
    """A holder that is asked again may be that of a later generation, which has not read what the work writes."""
    me, asked, attempts = await joined(coordinator), 0, 0
    again = text("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$")

    def holder() -> Holder:
        nonlocal asked
        asked += 1
        return held_by(me)

    @fenced(sessions, holder, attempts=3)
    async def work(session: AsyncSession) -> None:
        nonlocal attempts
        attempts += 1
        await session.execute(again)

    @fenced(sync_sessions, holder, attempts=3)
    def sync_work(session: Session) -> None:
        nonlocal attempts
        attempts += 1
        session.execute(again)

    with pytest.raises(DBAPIError):
        await work()
    with pytest.raises(DBAPIError):
        sync_work()
    assert (asked, attempts) == (2, 6)


async def test_a_holder_is_a_member_at_that_moment(coordinator: LocalCoordinator) -> None:
    me = await joined(coordinator)
    member = Member("default", "tellers", me.generation_id, me.member_id)

    assert Holder.of(member) == held_by(me)


async def test_arguments_and_results_of_the_work_are_its_own(
    coordinator: LocalCoordinator, sessions: async_sessionmaker[AsyncSession], sync_sessions: sessionmaker[Session]
) -> None:
    me = await joined(coordinator)

    @fenced(sessions, lambda: held_by(me))
    async def work(_session: AsyncSession, *arguments: int, **named: int) -> tuple[object, object]:
        return arguments, named

    @fenced(sync_sessions, lambda: held_by(me))
    def sync_work(_session: Session, *arguments: int, **named: int) -> tuple[object, object]:
        return arguments, named

    assert await work(1, 2, three=3) == ((1, 2), {"three": 3})
    assert sync_work(1, 2, three=3) == ((1, 2), {"three": 3})


async def test_a_hook_fences_every_transaction_of_a_session(
    coordinator: LocalCoordinator, sync_sessions: sessionmaker[Session]
) -> None:
    me = await joined(coordinator)
    fence_sessions(sync_sessions, lambda: held_by(me))

    with sync_sessions() as session:
        session.execute(WRITE)
        session.commit()
        session.execute(WRITE)
        await replaced(coordinator, me)
        with pytest.raises(DBAPIError) as refused:
            session.commit()

    assert stale(refused.value) is not None


def test_a_refusal_that_psycopg2_raises_is_known() -> None:
    class Refused(Exception):
        pgcode = "RT001"

    assert stale(DBAPIError("", None, Refused())) is not None
