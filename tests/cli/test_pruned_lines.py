"""Commands that read the journal say where it begins, and never skip pruned lines without a word."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from rota.cli.exits import Exit
from tests.cli.conftest import Rota
from tests.processes.server import SHARD_COUNT, Server
from tests.support.processes import Processes

pytestmark = pytest.mark.processes

EVENTS = ["member_joined", "rebalance_started", "generation_completed", "leader_changed", "assignment_synced"]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rota]:
    """`rota` with a server that has a journal pruned but for the last two lines of the group `indexers`."""
    directory = tmp_path_factory.mktemp("old")
    processes = Processes(directory)
    server = Server(processes, f"sqlite:///{directory / 'rota.db'}")
    server.start_and_wait()
    rota = Rota(server.url, server.store_url, "default")
    rota.member("indexers")
    make_old(server.store_url, keep=2)
    pruned = rota("journal", "prune", "--yes", "--keep-days", "7", "--store", server.store_url)
    assert pruned.exit_code == Exit.OK, pruned.err
    yield rota
    processes.close()


def make_old(store_url: str, keep: int) -> None:
    """Let the lines of the group's shard but for the last ones be ten days old."""
    with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"), timeout=30)) as connection, connection:
        (shard_id,) = connection.execute("SELECT shard_id FROM groups").fetchone()
        connection.execute(
            "UPDATE group_events SET at = at - 10 * 86400000 WHERE shard_id = :s"
            " AND seq <= (SELECT last_seq FROM shards WHERE shard_id = :s) - :keep",
            {"s": shard_id, "keep": keep},
        )


def test_watch_behind_pruned_lines_fails_and_says_how_to_go_on(old: Rota) -> None:
    failed = old("groups", "watch", "indexers", "--after", "0", "-n", "1")
    last_pruned = failed.err.split("--after ")[1].split("`")[0]
    went_on = old("groups", "watch", "indexers", "--after", last_pruned, "-n", "2")

    assert failed.exit_code == Exit.NOT_FOUND
    assert failed.out == ""
    assert f"the journal begins at revision {int(last_pruned) + 1}" in failed.err
    assert "(REVISION_OUT_OF_RANGE)" in failed.err
    assert [json.loads(line)["kind"] for line in went_on.out.splitlines()] == EVENTS[-2:]


def test_watch_beyond_the_journals_end_says_how_to_go_on(old: Rota) -> None:
    failed = old("groups", "watch", "indexers", "--after", "1000", "-n", "1")
    last = failed.err.split("--after ")[1].split("`")[0]
    went_on = old("groups", "watch", "indexers", "--after", str(int(last) - 1), "-n", "1")

    assert (failed.exit_code, failed.out) == (Exit.NOT_FOUND, "")
    assert f"the journal ends at revision {last}" in failed.err
    assert "(REVISION_OUT_OF_RANGE)" in failed.err
    assert json.loads(went_on.out)["kind"] == EVENTS[-1]


def test_verify_counts_the_shards_with_pruned_lines(old: Rota) -> None:
    found = json.loads(old("db", "verify", "--store", old.store_url, "-o", "json").out)

    assert (found["differences"], found["pruned"], found["shards"]) == (0, 1, SHARD_COUNT)
