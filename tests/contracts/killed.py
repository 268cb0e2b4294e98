"""Runs operations on a store in processes that kill themselves (SIGKILL) at a chosen point. `Killed` drives it.

A point is the place before a statement of SQL that does more than read, also before one that begins or ends a
transaction, before a file gets another name or length, and before a program starts. The place before a statement is
also the one after the statement before it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import asyncpg
from sqlalchemy import event
from sqlalchemy.engine import Engine

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import DeleteTopic
from rota.server.runtime.coordinator import LocalCoordinator
from rota.storage.backup import backup, restore
from rota.storage.migrate import upgrade
from rota.storage.pruning import prune
from rota.storage.restored import restored
from rota.storage.store import SqlStore

SHARDS = 3
TOPIC = "doomed"
LEASE_MS = 60_000
_READS = re.compile(r"\s*(SELECT|PRAGMA|ATTACH|SET|SHOW)\b", re.IGNORECASE)
_INNER = re.compile(r"(?!BEGIN|COMMIT|after|os\.|subprocess\.)")
_FILES = ("os.rename", "os.remove", "os.link", "os.truncate", "subprocess.Popen")


async def delete_topic(url: str) -> None:
    """Delete a topic as a server that owns all shards does. It takes them, as its predecessor may have been killed."""
    store = SqlStore(url)
    await store.open(SHARDS)
    try:
        async with LocalCoordinator(
            store, shard_count=SHARDS, replica_id="r", lease_ms=LEASE_MS, steal=True
        ) as coordinator:
            await coordinator.wait_until_ready()
            reply = (await coordinator.call(DeleteTopic("default", TOPIC))).reply
            assert reply.error in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC), reply
    finally:
        await store.close()


ACTIONS: dict[str, Callable[..., Awaitable[Any]]] = {
    "prune": lambda url: prune(url, 1),
    "upgrade": upgrade,
    "raise floors": lambda url: restored(url, raise_by=10, force=True),
    "back up": lambda url, target: backup(url, Path(target)),
    "restore": lambda url, source: restore(url, Path(source), raise_by=10, force=True),
    "delete a topic": delete_topic,
}


class Killed:
    """A process that starts others. Each of these is killed at a point, unless it completes before."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.contracts.killed"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def at(self, point: int, action: str, *arguments: str, only_outer: bool = False) -> str:
        """Run the action up to the point, which is returned; empty if the action completed before.

        With `only_outer`, statements within transactions are no points.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([point, only_outer, action, *arguments]) + "\n")
        self._process.stdin.flush()
        status, reached = json.loads(self._process.stdout.readline())
        assert status in (0, -signal.SIGKILL), f"{action} failed at point {point}"
        assert (status == 0) == (reached == "")
        return str(reached)


class _Points:
    def __init__(self, last: int, left_out: re.Pattern[str], report: int) -> None:
        self._left = last
        self._left_out = left_out
        self._report = report

    def count(self) -> None:
        sys.addaudithook(self._audit)
        event.listen(Engine, "before_cursor_execute", self._statement)
        connect = sqlite3.connect

        def connect_traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*arguments, **options)
            connection.set_trace_callback(self._reached)
            return connection

        sqlite3.connect = connect_traced  # type: ignore[assignment]
        # What SQLAlchemy does not see: transactions, copies, and the statements that are the driver's.
        for name in ("execute", "fetch", "copy_to_table"):
            setattr(asyncpg.Connection, name, self._around(getattr(asyncpg.Connection, name)))

    def _around(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(connection: Any, what: str, *arguments: Any, **options: Any) -> Any:
            self._reached(what)
            result = await call(connection, what, *arguments, **options)
            if what == "COMMIT":
                self._reached("after COMMIT")
            return result

        return counted

    def _reached(self, point: str) -> None:
        if self._left_out.match(point):
            return
        self._left -= 1
        if not self._left:
            os.write(self._report, point.encode()[:1_000])
            os.kill(os.getpid(), signal.SIGKILL)

    def _audit(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name in _FILES:
            self._reached(f"{name} {arguments}")

    def _statement(self, connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if connection.dialect.name == "postgresql":
            self._reached(statement)


def _serve() -> None:
    for line in sys.stdin:
        point, only_outer, action, *arguments = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            _run(_Points(point, _INNER if only_outer else _READS, writing), action, arguments)
        os.close(writing)
        with os.fdopen(reading) as report:
            reached = report.read()
        _, status = os.waitpid(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), reached]), flush=True)


def _run(points: _Points, action: str, arguments: list[str]) -> None:
    """Never returns: the child must not go on with its parent's work."""
    try:
        points.count()
        asyncio.run(ACTIONS[action](*arguments))  # type: ignore[arg-type]
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    _serve()
