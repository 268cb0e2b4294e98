"""`rota journal`: readers are kept in mind, and only what all of them have read is deleted."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rota.cli.exits import Exit
from tests.cli.conftest import Rota

pytestmark = pytest.mark.processes


@pytest.fixture
def old_store(rota: Rota, tmp_path: Path) -> str:
    """The URL of a copy of the running server's store, with lines that are ten days old."""
    rota.member("indexers")
    copy = tmp_path / "copy.db"
    with (
        closing(sqlite3.connect(rota.store_url.removeprefix("sqlite:///"))) as live,
        closing(sqlite3.connect(copy)) as target,
    ):
        live.backup(target)
        with target:
            target.execute("UPDATE group_events SET at = at - 10 * 86400000")
    return f"sqlite:///{copy}"


def lines_of(rota: Rota, store_url: str) -> dict[str, int]:
    found: dict[str, int] = json.loads(rota("db", "verify", "--store", store_url, "-o", "json").out)
    return found


def test_a_reader_holds_what_it_has_not_read_until_it_is_removed(rota: Rota, old_store: str) -> None:
    added = rota("journal", "readers", "--add", "nightly", "-o", "json", ROTA_STORE=old_store)
    held = rota("journal", "prune", "--yes", "--keep-days", "7", ROTA_STORE=old_store)
    removed = rota("journal", "readers", "--remove", "nightly", ROTA_STORE=old_store)
    would = rota("journal", "prune", "--yes", "--keep-days", "7", "--dry-run", ROTA_STORE=old_store)
    pruned = rota("journal", "prune", "--yes", "--keep-days", "7", ROTA_STORE=old_store)

    [reader] = json.loads(added.out)
    assert (reader["reader"], reader["unread"] > 3, added.err) == ("nightly", True, "nightly was added\n")
    assert held.err.startswith("0 lines")
    assert "until they are read by nightly" in held.err
    assert removed.out == "READER  UNREAD  READ\n"
    assert "would be deleted" in would.err
    assert pruned.err.startswith(f"{reader['unread']} lines")
    assert pruned.exit_code == 0
    assert lines_of(rota, old_store)["pruned"] > 0


def test_what_cannot_be_done_is_said_in_one_line(rota: Rota, tmp_path: Path) -> None:
    nobody = rota("journal", "readers", "--remove", "nobody", "--store", rota.store_url)
    nothing = rota("journal", "prune", "--yes", "--keep-days", "7", "--store", f"sqlite:///{tmp_path / 'none.db'}")

    assert (nobody.exit_code, nobody.err) == (
        Exit.NOT_FOUND,
        "rota: the journal has no reader named nobody\n",
    )
    assert nothing.exit_code == Exit.ERROR
    assert "there is no store" in nothing.err
