"""Three processes, two permits: one is paused past its session, and the row of its permit is another's from then on."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest

from examples.fenced_permits.downloads import SCHEMA, write
from tests.examples.conftest import ROOT
from tests.processes.server import Server
from tests.support.processes import Process, Processes

pytestmark = pytest.mark.processes


def start(processes: Processes, server: Server, database: Path) -> Process:
    environment = {"ROTA_URL": server.url, "DATABASE": str(database), "ROTA_SESSION_TIMEOUT_MS": "1000"}
    return processes.start(sys.executable, "-m", "examples.fenced_permits.downloads", env=environment, cwd=ROOT)


def held(process: Process) -> tuple[int, int]:
    found = process.wait_for_line(r"^holds (\d+) (\d+)$")
    return int(found[1]), int(found[2])


@pytest.mark.thorough
def test_a_paused_holder_changes_nothing_and_waits_again(processes: Processes, server: Server, tmp_path: Path) -> None:
    database = tmp_path / "downloads.db"
    paused = start(processes, server, database)
    number, token = held(paused)
    other = start(processes, server, database)
    assert held(other)[0] == 1 - number
    paused.pause()
    waiting = start(processes, server, database)

    taken, higher = held(waiting)
    waiting.wait_until(lambda: row(database, number)[1] == waiting.pid, "a write of the next holder")
    paused.resume()
    paused.wait_for_line(r"^(lost: .*|refused .*)$")

    assert (taken, higher > token) == (number, True)
    assert row(database, number) == (higher, waiting.pid)


def test_the_row_of_a_permit_refuses_a_lower_token() -> None:
    database = sqlite3.connect(":memory:")
    database.execute(SCHEMA)

    assert [write(database, 0, token) for token in (7, 7, 9, 7)] == [True, True, True, False]
    assert write(database, 1, 7), "each permit has tokens of its own"
    database.close()


def row(database: Path, permit: int) -> tuple[int, int]:
    connection = sqlite3.connect(database, timeout=30)
    found: tuple[int, int] = connection.execute(
        "SELECT token, writer FROM slots WHERE permit = ?", (permit,)
    ).fetchone()
    connection.close()
    return found
