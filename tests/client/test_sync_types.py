"""Type checkers see the SDK, async and sync, as it behaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import rota.client as sdk
from rota.client import sync
from tests.client import sync_program

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_users_program_is_typed_and_its_mistakes_are_found() -> None:
    """Strictly, as configured: also that an error is ignored which is none is an error."""
    command = (sys.executable, "-m", "mypy", "--follow-imports=silent", sync_program.__file__)
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.thorough
def test_pyright_finds_nothing_in_programs_of_all_uses(tmp_path: Path) -> None:
    """In strict mode, where a type that pyright cannot read is an error as well."""
    settings = {
        "typeCheckingMode": "strict",
        "include": [sync_program.__file__, str(Path(__file__).with_name("typed_program.py"))],
        "extraPaths": [str(ROOT / "service")],
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    program = Path(sys.executable).with_name("basedpyright")
    command = (program, "--project", tmp_path, "--pythonpath", sys.executable)
    checked = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert checked.returncode == 0, checked.stdout
    assert "0 errors, 0 warnings" in checked.stdout


def test_the_same_program_runs(url: str) -> None:
    sync_program.main(url)


def test_every_object_of_the_sdk_has_its_twin_by_the_same_name() -> None:
    blocks = {name for name in sdk.__all__ if hasattr(getattr(sdk, name), "__aenter__")}
    assert blocks <= set(sync.__all__)
