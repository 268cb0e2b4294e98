"""`rota db`: the schema of a store, and a journal that must explain each of its rows."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Rota
from tests.support.processes import Processes

pytestmark = pytest.mark.processes

OPENED_AGAIN = """
    UPDATE group_events SET payload = json_set(payload, '$.generation_id', 0) WHERE kind = 'generation_completed'
"""


@pytest.fixture
def copied(rota: Rota, tmp_path: Path) -> Path:
    """A copy of the running server's store, with a group that works, one that was deleted, offsets and a topic."""
    rota.member("indexers")
    rota("offsets", "set", "--force", "billing", "invoices", "0", "7")
    rota("offsets", "set", "--force", "gone", "invoices", "0", "1")
    rota("groups", "delete", "--yes", "gone")
    rota("topics", "put", "words", "-p", "12")
    copy = tmp_path / "copy.db"
    with (
        closing(sqlite3.connect(rota.store_url.removeprefix("sqlite:///"))) as live,
        closing(sqlite3.connect(copy)) as target,
    ):
        live.backup(target)
    return copy


def tamper(database: Path, statement: str) -> None:
    """Change the store without the server's knowledge."""
    with closing(sqlite3.connect(database)) as connection, connection:
        assert connection.execute(statement).rowcount > 0


def test_a_running_servers_journal_and_rows_agree(rota: Rota, copied: Path) -> None:
    live = rota("db", "verify", "--store", rota.store_url, "-o", "json")
    copy = rota("db", "verify", "--store", f"sqlite:///{copied}")

    assert (live.exit_code, live.err) == (0, "")
    found = json.loads(live.out)
    assert (found["shards"], found["differences"]) == (4, 0)
    assert found["events"] > 4
    assert (copy.exit_code, copy.out.splitlines()[-1]) == (0, "differences:  0")


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE groups SET generation_id = 9 WHERE group_id = 'indexers'", "the journal says GroupRow"),
        ("DELETE FROM members", "the rows say None"),
        ("UPDATE members SET assignment = x'00'", "the rows say MemberRow"),
        ("UPDATE offsets SET offset = 8 WHERE group_id = 'billing'", "/billing/invoices/0: the journal says OffsetRow"),
        ("UPDATE topics SET partitions = 13", "the journal says TopicRow"),
        ("DELETE FROM groups WHERE group_id = 'gone'", "/gone: the journal says GroupRow"),
        ("DELETE FROM group_events WHERE kind = 'offsets_committed'", "follows line"),
        ("UPDATE group_events SET epoch = 0 WHERE kind = 'topic_changed'", "has epoch 0, the line before"),
        ("UPDATE group_events SET kind = 'nonsense' WHERE kind = 'topic_changed'", "cannot be folded: KeyError"),
        ("UPDATE members SET protocols = '[[7]]'", "a row is damaged, restore a backup"),
        ("UPDATE groups SET quarantine = '{\"uni4s\": []}'", "a row is damaged, restore a backup"),
        ("UPDATE shards SET last_seq = last_seq + 1", "but the shard's row says"),
        (OPENED_AGAIN, "opens generation 0 of"),
    ],
)
def test_whatever_is_changed_behind_the_journals_back_is_found(
    rota: Rota, copied: Path, statement: str, says: str
) -> None:
    tamper(copied, statement)

    found = rota("db", "verify", "--store", f"sqlite:///{copied}")

    assert found.exit_code == 1
    assert says in found.err
    assert found.err.splitlines()[-1] == "rota: the journal and the rows do not agree"


def test_a_foreign_trigger_is_found(rota: Rota, copied: Path) -> None:
    with closing(sqlite3.connect(copied)) as connection:
        connection.execute("CREATE TRIGGER keep AFTER UPDATE ON tokens BEGIN SELECT 1; END")

    found = rota("db", "verify", "--store", f"sqlite:///{copied}", "-o", "json")

    assert (found.exit_code, json.loads(found.out)["differences"]) == (1, 1)
    assert "the schema: it has the TRIGGER keep, which Rota does not make" in found.err


def test_a_store_is_made_checked_and_verified(rota: Rota, tmp_path: Path) -> None:
    store = ("--store", f"sqlite:///{tmp_path / 'new' / 'rota.db'}")
    missing = rota("db", "check", *store)

    made = rota("db", "upgrade", *store)

    checked = rota("db", "check", *store, "-o", "json")
    verified = rota("db", "verify", *store)
    assert (missing.exit_code, missing.err) == (
        1,
        "rota: the schema is not this release's; run `rota db upgrade`\n",
    )
    assert made.exit_code == 0
    assert made.err.startswith("the schema is at ")
    assert (checked.exit_code, json.loads(checked.out)["usable"]) == (0, True)
    assert (verified.exit_code, verified.out.splitlines()[0]) == (0, "shards:       0")


def test_a_store_in_use_is_not_upgraded(rota: Rota) -> None:
    refused = rota("db", "upgrade", "--store", rota.store_url)

    assert refused.exit_code == 1
    assert "another service is using this store" in refused.err


@pytest.mark.slow
def test_wait_ends_once_somebody_has_upgraded_the_store(tmp_path: Path, processes: Processes) -> None:
    store = f"sqlite:///{tmp_path}/new.db"
    waiting = processes.rota("db", "wait", "--store", store)

    assert processes.rota("db", "wait", "--store", store, "--timeout", "0").wait_for_exit() == 69
    assert waiting.running
    assert processes.rota("db", "upgrade", "--store", store).wait_for_exit() == 0

    assert waiting.wait_for_exit() == 0
    assert "the schema is at" in waiting.output()
