"""Fences in SQLAlchemy's transactions on the Postgres that Rota uses: a decorator, a hook for sessions, two statements.

    @fenced(Session, lambda: Holder.of(member))
    def move(session, amount):             # runs in its own transaction, repeated if Postgres requires it
        session.execute(update(...))
        session.execute(commit_offsets(Holder.of(member), [OffsetToCommit("transfers", 0, 42)]))

For sync and async sessions. A rejected transaction raises `StaleTransaction`.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol, TypeVar

from msgspec import structs
from sqlalchemy import Connection, Executable, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

from rota.fencing.errors import StaleTransaction
from rota.protocol.messages import OffsetToCommit

ATTEMPTS: Final = 10
_STALE: Final = {"RT001", "RT002", "RT003", "RT008"}
_AGAIN: Final = {"40001", "40P01"}

Work = TypeVar("Work", bound=Callable[..., Any])
_ASSERT = text("SELECT rota.assert_current(:namespace, :group_id, :generation_id, :member_id)")
_COMMIT = text("SELECT rota.commit_offsets(:namespace, :group_id, :generation_id, :member_id, CAST(:offsets AS jsonb))")


class Membership(Protocol):
    """The source of a `Holder`: a member of the SDK, or any object with these attributes."""

    @property
    def namespace(self) -> str: ...
    @property
    def group_id(self) -> str: ...
    @property
    def generation_id(self) -> int: ...
    @property
    def member_id(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Holder:
    """A member and its generation of a group."""

    namespace: str
    group_id: str
    generation_id: int
    member_id: str

    @classmethod
    def of(cls, member: Membership) -> Holder:
        """Return the member's current generation: take it together with the work, not when writing."""
        return cls(member.namespace, member.group_id, member.generation_id, member.member_id)


def assert_current(holder: Holder) -> Executable:
    """Return the statement that fences the transaction in which it is executed."""
    return _ASSERT.bindparams(**asdict(holder))


def commit_offsets(holder: Holder, offsets: Iterable[OffsetToCommit]) -> Executable:
    """Return the statement that commits progress in a transaction, and fences it."""
    given = [{name: value for name, value in structs.asdict(offset).items() if value is not None} for offset in offsets]
    return _COMMIT.bindparams(**asdict(holder), offsets=json.dumps(given))


def fence_sessions(sessions: sessionmaker[Any] | type[Session], holder: Callable[[], Holder]) -> None:
    """Fence every transaction of these sessions at its start. For async sessions: their `sync_session_class`.

    A rejected transaction raises SQLAlchemy's `DBAPIError`; `stale` distinguishes it from others.
    """

    def fence(_session: Session, transaction: SessionTransaction, connection: Connection) -> None:
        if not transaction.nested:
            connection.execute(assert_current(holder()))

    event.listen(sessions, "after_begin", fence)


def fenced(
    sessions: sessionmaker[Any] | async_sessionmaker[Any], holder: Callable[[], Holder], *, attempts: int = ATTEMPTS
) -> Callable[[Work], Callable[..., Any]]:
    """Call the function with a session as its first argument, in a fenced transaction that is committed when it has
    returned.

    It is repeated if Postgres requires that, so it should only work on the session. `holder` is called once: all
    attempts act for the same holder.

    Raises:
        StaleTransaction: The generation is over. No change was committed.
    """

    def decorate(work: Work) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(work):
            return functools.wraps(work)(_async_runner(sessions, holder, work, attempts))
        return functools.wraps(work)(_runner(sessions, holder, work, attempts))

    return decorate


def stale(error: DBAPIError) -> StaleTransaction | None:
    """Return the rejection of a fence, if that is the cause of the error."""
    return StaleTransaction(str(error.orig)) if _sqlstate(error) in _STALE else None


def _runner(sessions: Any, holder: Callable[[], Holder], work: Callable[..., Any], attempts: int) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        fence = assert_current(holder())
        for left in reversed(range(attempts)):
            try:
                with sessions.begin() as session:
                    session.execute(fence)
                    return work(session, *arguments, **named)
            except DBAPIError as error:
                _raise_unless_again(error, is_last=not left)
        raise AssertionError("the last attempt returns or raises")

    return run


def _async_runner(
    sessions: Any, holder: Callable[[], Holder], work: Callable[..., Any], attempts: int
) -> Callable[..., Any]:
    async def run(*arguments: Any, **named: Any) -> Any:
        fence = assert_current(holder())
        for left in reversed(range(attempts)):
            try:
                async with sessions.begin() as session:
                    await session.execute(fence)
                    return await work(session, *arguments, **named)
            except DBAPIError as error:
                _raise_unless_again(error, is_last=not left)
        raise AssertionError("the last attempt returns or raises")

    return run


def _raise_unless_again(error: DBAPIError, *, is_last: bool) -> None:
    refusal = stale(error)
    if refusal is not None:
        raise refusal from error
    if is_last or _sqlstate(error) not in _AGAIN:
        raise error


def _sqlstate(error: DBAPIError) -> str | None:
    return getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
