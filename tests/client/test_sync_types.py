"""Type checkers see the sync SDK as it behaves."""

from __future__ import annotations

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


def test_the_same_program_runs(url: str) -> None:
    sync_program.main(url)


def test_every_object_of_the_sdk_has_its_twin_by_the_same_name() -> None:
    blocks = {name for name in sdk.__all__ if hasattr(getattr(sdk, name), "__aenter__")}
    assert blocks <= set(sync.__all__)
