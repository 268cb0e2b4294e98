"""The modules that a command loads: start-up costs what is imported, so a command imports what it needs."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.cli.conftest import Rota

PROGRAM = textwrap.dedent("""
    import atexit, sys
    from rota.cli.main import main
    atexit.register(lambda: print(*sys.modules, file=sys.stderr))
    sys.argv = ["rota", *sys.argv[1:]]
    main()
""")
NEEDLESS = {
    "alembic",
    "asyncpg",
    "cryptography",
    "fastapi",
    "grpc",
    "pydantic",
    "rota.client",
    "rota.core.types",
    "uvicorn",
}
"""Each adds a tenth to the start-up of a command that works on a store, and more to that of any other."""
OF_STORES = {"rota.storage", "sqlalchemy"}


@pytest.mark.parametrize("words", ["--help", "groups list", "groups why workers"])
def test_a_command_imports_only_what_it_needs(rota: Rota, words: str) -> None:
    rota("offsets", "set", "--force", "workers", "documents", "0", "1")

    assert (NEEDLESS | OF_STORES) & loaded(rota.environment(), words) == set()


def test_a_command_without_a_server_imports_only_what_it_needs(rota: Rota) -> None:
    environment = {**rota.environment(), "ROTA_URL": "http://127.0.0.1:1"}

    assert (NEEDLESS | OF_STORES) & loaded(environment, "groups list", exit_code=69) == set()


@pytest.mark.parametrize("words", ["token list"])
def test_a_command_on_a_store_imports_only_what_it_needs(rota: Rota, tmp_path: Path, words: str) -> None:
    store = f"sqlite:///{tmp_path / 'rota.db'}"
    rota("db", "upgrade", "--store", store)

    assert NEEDLESS & loaded({**rota.environment(), "ROTA_STORE": store}, words) == set()


def test_completion_imports_only_what_it_needs(rota: Rota) -> None:
    asks = {"_ROTA_COMPLETE": "complete_bash", "COMP_WORDS": "rota groups why ", "COMP_CWORD": "3"}

    assert (NEEDLESS | OF_STORES) & loaded({**rota.environment(), **asks}, "") == set()


def loaded(environment: dict[str, str], words: str, *, exit_code: int = 0) -> set[str]:
    """The modules of a process that ran `rota` with these words."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words.split()],
        env={"PATH": "", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == exit_code, done.stderr
    return set(done.stderr.splitlines()[-1].split())
