"""The generated references are what the code would write today."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from rota.cli.serve import serve
from rota.server.settings import Settings

GENERATOR = Path(__file__).parents[2] / "docs" / "generate.py"


def test_the_generated_references_are_up_to_date() -> None:
    checked = subprocess.run([sys.executable, GENERATOR, "--check"], capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stderr


def test_the_check_names_a_page_that_is_missing_or_old(tmp_path: Path) -> None:
    generator = load_generator()
    generator.write(tmp_path)
    assert generator.out_of_date(tmp_path) == []

    (tmp_path / "errors.md").unlink()
    (tmp_path / "states.md").write_text("# something else\n")

    assert generator.out_of_date(tmp_path) == ["errors.md", "states.md"]


def test_every_setting_is_an_option_of_rota_serve() -> None:
    """But the bounds of the protocol, which come by the environment only."""
    options = set(inspect.signature(serve).parameters)

    assert options == set(Settings.model_fields) - {"limits"}


def load_generator() -> ModuleType:
    """docs/generate.py as a module; it is in no package."""
    spec = importlib.util.spec_from_file_location("docs_generate", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
