"""`rota db backup`, `restore` and `restored`, as an operator runs them: what they print, and typical mistakes."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Rota

pytestmark = [pytest.mark.processes, pytest.mark.thorough]


@pytest.fixture
def backup(rota: Rota, tmp_path: Path) -> Path:
    """A backup of the running server's store, with a group that works and an offset."""
    rota.member("indexers")
    rota("offsets", "set", "--force", "billing", "invoices", "0", "7")
    done = rota("db", "backup", str(tmp_path / "backup.db"), "--store", rota.store_url)
    assert (done.exit_code, done.out, done.err) == (0, f"{tmp_path / 'backup.db'}\n", "")
    return tmp_path / "backup.db"


def test_a_folder_gets_a_backup_with_a_date_in_its_name(rota: Rota, tmp_path: Path) -> None:
    done = rota("db", "backup", str(tmp_path), "--store", rota.store_url)

    assert re.fullmatch(rf"{tmp_path}/rota-\d{{8}}T\d{{6}}Z\.db\n", done.out)
    assert (Path(done.out.strip()).stat().st_mode & 0o777) == 0o600


def test_lost_commits_beyond_the_first_ones_are_counted(
    rota: Rota, backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.cli.db.SHOWN", 2)
    for partition in "012":
        rota("offsets", "set", "--force", "billing", "invoices", partition, "9")
    rota("db", "backup", str(tmp_path / "later.db"), "--store", rota.store_url)

    done = rota("db", "restore", str(backup), "--store", f"sqlite:///{tmp_path / 'later.db'}")

    assert done.err.count("lost commit: ") == 2
    assert "… and 1 more such lines; `-o json` has all" in done.err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("db", "restore", "{backup}", "--store", "{live}"), "another service is using this store"),
        (("db", "restored", "--store", "{live}"), "another service is using this store"),
        (("db", "backup", "{backup}", "--store", "{live}"), "is there already"),
        (("db", "backup", "{folder}/x.db", "--store", "sqlite:///{folder}/typo.db"), "there is no store at"),
        (("db", "restore", "{folder}/typo", "--store", "sqlite:///{folder}/x.db"), "there is no backup at"),
        (("db", "restore", "{program}", "--store", "sqlite:///{folder}/x.db"), "cannot be copied"),
        (("db", "restored", "--store", "sqlite:///{folder}/typo.db"), "there is no store at"),
        (("db", "backup", "{folder}/x.dump", "--store", "postgresql://no@127.0.0.1:1/x"), "cannot be reached"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(
    rota: Rota, backup: Path, tmp_path: Path, command: tuple[str, ...], says: str
) -> None:
    names = {"backup": str(backup), "live": rota.store_url, "folder": str(tmp_path), "program": shutil.which("env")}
    before = {path.name: path.stat().st_size for path in tmp_path.iterdir()}

    done = rota(*(part.format(**names) for part in command))

    assert (done.exit_code in (1, 69), done.out, done.err.count("\n")) == (True, "", 1)
    assert says in done.err
    assert {name: size for name, size in files_of(tmp_path).items() if not name.endswith(".lock")} == before


def files_of(folder: Path) -> dict[str, int]:
    return {name: os.stat(folder / name).st_size for name in os.listdir(folder)}


def test_a_store_is_copied_to_postgres(rota: Rota, backup: Path, postgres_dsn: str) -> None:
    assert rota("db", "upgrade", "--store", postgres_dsn).exit_code == 0

    done = rota("db", "copy", "--store", f"sqlite:///{backup}", "--to", postgres_dsn, "-o", "json")

    copied = json.loads(done.out)
    assert (done.exit_code, copied["members"] > 0, copied["offsets"] > 0) == (0, True, True)
    assert "do not serve the source again" in done.err
    assert rota("db", "verify", "--store", postgres_dsn).exit_code == 0
    again = rota("db", "copy", "--store", f"sqlite:///{backup}", "--to", postgres_dsn)
    assert (again.exit_code, "holds a store already" in again.err) == (1, True)
