"""The modules that a command loads: start-up costs what is imported, so a command imports what it needs."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tests.cli.conftest import Rota

PROGRAM = textwrap.dedent("""
    import atexit, sys
    from rota.cli.main import main
    atexit.register(lambda: print(*sys.modules, file=sys.stderr))
    sys.argv = ["rota", *sys.argv[1:]]
    main()
""")
NEEDLESS = {"alembic", "fastapi", "grpc", "rota.client", "rota.storage", "rota.types", "sqlalchemy", "uvicorn"}
"""Each takes longer to import than a command that calls a server takes without it."""


@pytest.mark.parametrize("words", ["--help", "groups --help", "groups list", "groups why workers", "topics list"])
def test_a_command_imports_only_what_it_needs(rota: Rota, words: str) -> None:
    rota("offsets", "set", "--force", "workers", "documents", "0", "1")

    assert NEEDLESS & loaded(rota.environment(), words) == set()


def test_completion_imports_only_what_it_needs(rota: Rota) -> None:
    asks = {"_ROTA_COMPLETE": "complete_bash", "COMP_WORDS": "rota groups why ", "COMP_CWORD": "3"}

    assert NEEDLESS & loaded({**rota.environment(), **asks}, "") == set()


def loaded(environment: dict[str, str], words: str) -> set[str]:
    """The modules of a process that ran `rota` with these words."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words.split()],
        env={"PATH": "", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stderr.splitlines()[-1].split())
