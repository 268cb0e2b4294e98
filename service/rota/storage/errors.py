"""The one place where what the drivers raise becomes what the port promises."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import cache
from json import JSONDecodeError

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from rota.core.replica.ports import StoreRefused, StoreUnavailable

UPGRADE_HINT = "run `rota db upgrade`"
LOCK_NOT_AVAILABLE = "55P03"
"""The SQLSTATE of a lock that another session kept for longer than `lock_timeout`."""

# SQLSTATE classes and codes that waiting cannot cure: no login, no such database or schema, no such
# table or column, no right to it. All others are unavailability, also unforeseen ones:
# the caller then takes the outcome as unknown, which is always safe.
_REFUSED_STATES = ("28", "3D", "3F", "42")
# The same for SQLite. SQLITE_ERROR is its code for a statement that it cannot compile.
_REFUSED_NAMES = ("SQLITE_ERROR", "SQLITE_AUTH", "SQLITE_CANTOPEN", "SQLITE_NOTADB", "SQLITE_PERM", "SQLITE_READONLY")
_BEFORE_VALUE = " with text "
"""Between the words of Python's driver and a value, users' data, that cannot be decoded."""
_SCHEMA_STATES = ("3F000", "42P01", "42703", "42883")
"""No such schema, table, column, function."""


class store_errors:
    """Run a piece of work of the store; whatever the drivers raise in it becomes an exception of the port.

    A store that `is_in_use` fitted when it was opened: a login, a database or a table that it refuses later is a
    failover, a rotated password or a restore under way. Its users wait for the end of that, and do not give up.
    """

    __slots__ = ("_is_in_use",)

    def __init__(self, *, is_in_use: bool = False) -> None:
        self._is_in_use = is_in_use

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        match error:
            case None:
                pass
            case TimeoutError() | PoolTimeoutError():
                raise StoreUnavailable("the store did not answer in time") from error
            case _ if isinstance(error, (DBAPIError, sqlite3.Error, OSError, *_errors_of_asyncpg())):
                meaning = as_store_error(error)
                raise (StoreUnavailable(str(meaning)) if self._is_in_use else meaning) from error
            case UnicodeDecodeError() | JSONDecodeError():
                # A value is readable when it is written, so it has changed since.
                raise StoreUnavailable(_damaged(str(error))) from error
            case UnicodeError() | OverflowError():
                # Text or a number that the engine cannot hold; the transaction was rolled back.
                raise StoreUnavailable(f"the store cannot hold a value: {error}") from error
            case _:
                pass


def as_store_error(error: BaseException) -> StoreRefused | StoreUnavailable:
    """What a driver's error, however wrapped, means to the caller."""
    for cause in _causes(error):
        state = sqlstate(cause)
        if state is not None:
            return _from_sqlstate(state, _said(cause))
        if isinstance(cause, sqlite3.Error):
            return _from_sqlite(cause)
        # asyncpg raises this between the last message of a session that Postgres ends and the end of the connection.
        if isinstance(cause, _errors_of_asyncpg()) and "cannot switch to state" in str(cause):
            return StoreUnavailable("the store has ended the connection")
    return StoreUnavailable(f"the store cannot be reached: {_said(error)}")


@cache
def _errors_of_asyncpg() -> tuple[type[Exception], ...]:
    """The errors of statements that run on the driver itself; it may not be installed if there is no Postgres."""
    try:
        from asyncpg import InterfaceError, InternalClientError, PostgresError
    except ModuleNotFoundError:
        return ()
    return InterfaceError, InternalClientError, PostgresError


def is_locked(error: BaseException | None) -> bool:
    """Whether another connection has the write lock of SQLite's file."""
    return any(getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY for cause in _causes(error))


def sqlstate(error: BaseException | None) -> str | None:
    """The SQLSTATE that Postgres gave, if `error` or its cause came from there."""
    if error is None:
        return None
    state = getattr(error, "sqlstate", None) or getattr(getattr(error, "orig", None), "sqlstate", None)
    return state if isinstance(state, str) else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = getattr(error, "orig", None) or error.__cause__


def _said(error: BaseException) -> str:
    """The driver's own words, without the statement and the parameters that SQLAlchemy adds: they are users' data."""
    words = str(getattr(error, "orig", None) or error)
    return words.splitlines()[0] if words else type(error).__name__


def _from_sqlstate(state: str, said: str) -> StoreRefused | StoreUnavailable:
    if state in _SCHEMA_STATES:
        return StoreRefused(f"the store's schema does not fit this release, {UPGRADE_HINT}: {said}")
    if state.startswith(_REFUSED_STATES):
        return StoreRefused(f"the store refuses us: {said}")
    return StoreUnavailable(f"the store did not do it: {said}")


def _from_sqlite(cause: sqlite3.Error) -> StoreRefused | StoreUnavailable:
    name = getattr(cause, "sqlite_errorname", "")
    if name.startswith(_REFUSED_NAMES):
        return StoreRefused(f"the store's file is not ours to use: {cause}")
    said, _, value = str(cause).partition(_BEFORE_VALUE)
    if value or name.startswith("SQLITE_CORRUPT"):
        return StoreUnavailable(_damaged(said))
    return StoreUnavailable(f"the store did not do it: {said}")


def _damaged(said: str) -> str:
    return f"the store is damaged, restore a backup with `rota db restore`: {said}"
