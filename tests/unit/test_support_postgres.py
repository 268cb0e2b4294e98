"""The Postgres that other tests rely on keeps what it committed, and goes when it should."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.processes


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as started:
        yield started


@pytest.mark.slow
def test_committed_rows_survive_kill9_every_time(server: PostgresServer) -> None:
    server.execute("CREATE TABLE acknowledged (round int)")

    for number in range(5):
        server.execute(f"INSERT INTO acknowledged VALUES ({number})")
        server.kill9()
        server.start()

    assert server.execute("SELECT array_agg(round ORDER BY round) FROM acknowledged") == "{0,1,2,3,4}"
