"""The Postgres that other tests rely on keeps what it committed, and goes when it should."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
import pytest

from tests.support.postgres import PostgresServer, StopMode
from tests.support.reaper import is_alive

pytestmark = pytest.mark.processes


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as started:
        yield started


def test_postgres_answers_on_its_dsn_and_syncs_to_disk(server: PostgresServer) -> None:
    version = int(server.execute("SHOW server_version_num"))

    assert version >= 180000
    assert server.execute("SHOW fsync") == "on"


@pytest.mark.slow
def test_committed_rows_survive_kill9_every_time(server: PostgresServer) -> None:
    server.execute("CREATE TABLE acknowledged (round int)")

    for number in range(5):
        server.execute(f"INSERT INTO acknowledged VALUES ({number})")
        server.kill9()
        server.start()

    assert server.execute("SELECT array_agg(round ORDER BY round) FROM acknowledged") == "{0,1,2,3,4}"


@pytest.mark.thorough
async def test_kill9_takes_backends_along_and_drops_uncommitted_work(server: PostgresServer) -> None:
    server.execute("CREATE TABLE rows (n int)")
    connection = await asyncpg.connect(server.dsn())
    backend = await connection.fetchval("SELECT pg_backend_pid()")
    await connection.execute("BEGIN")
    await connection.execute("INSERT INTO rows VALUES (1)")

    server.kill9()

    assert not is_alive(backend)
    connection.terminate()
    server.restart()
    assert server.execute("SELECT count(*) FROM rows") == "0"


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(StopMode))
def test_a_stopped_server_comes_back_with_its_data_and_port(server: PostgresServer, mode: StopMode) -> None:
    dsn = server.create_database("kept")

    server.stop(mode)
    server.start()

    assert dsn == server.dsn("kept")
    assert server.execute("SELECT current_database()", database="kept") == "kept"


@pytest.mark.slow
def test_a_database_can_be_made_from_a_template(server: PostgresServer) -> None:
    server.create_database("blueprint")
    server.execute("CREATE TABLE built (n int)", database="blueprint")

    server.create_database("copy", template="blueprint")

    assert server.execute("SELECT count(*) FROM built", database="copy") == "0"


@pytest.mark.thorough
def test_removing_a_server_leaves_no_directory(server: PostgresServer) -> None:
    directory = server.data_directory.parent

    server.remove()

    assert not directory.exists()
    assert not server.process.running


@pytest.mark.parametrize("attempt", [1, 2])
async def test_every_test_gets_a_database_of_its_own(postgres_dsn: str, attempt: int) -> None:
    connection = await asyncpg.connect(postgres_dsn)

    await connection.execute("CREATE TABLE mine (attempt int)")  # fails if the other test's is there

    await connection.close()
