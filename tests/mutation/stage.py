"""Where a room is mutated: a folder below `build/` that shows mutmut the layout that it expects.

mutmut imports the modules that it mutates from `src/` and copies them: here `src` and `tests` are links to ours.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.sources import ROOT

STAGES = ROOT / "build" / "mutants"

_NOT_QUICK = ("test_core_machine.py", "test_membership_with_the_core.py")


def _files(folder: str, pattern: str) -> tuple[str, ...]:
    paths = sorted((ROOT / folder).glob(pattern))
    return tuple(str(path.relative_to(ROOT)) for path in paths if path.name not in _NOT_QUICK)


@dataclass(frozen=True, slots=True)
class Room:
    """A package of the product and the quick tests that are to find its mutants."""

    name: str
    tests: tuple[str, ...]
    modules: tuple[str, ...] = ("*",)
    """The modules that are mutated. Statements in SQL are built once a process, so no test runs mutants of them."""
    chosen: str = "test"
    """The tests that are played, as pytest's -k has it."""

    @property
    def stage(self) -> Path:
        return STAGES / self.name


ROOMS = {
    room.name: room
    for room in (
        Room("membership", _files("tests/unit", "test_membership*.py")),
        Room("replica", _files("tests/unit/replica", "test_*.py")),
        Room("group", (*_files("tests/unit/group", "test_*.py"), "tests/conformance/test_classic.py")),
        Room("fencing", _files("tests/fencing", "test_[kt]*.py")),
        Room("storage", ("tests/contracts/test_pruning.py",), ("prune_plan.py",), chosen="not postgres"),
    )
}

# In a mutated file each method stands several times, which three of mypy's checks reject: the others remain.
_NOT_CHECKED = ("no-redef", "has-type", "redundant-expr")
_TYPES = [
    *(sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--output", "json"),
    *(part for code in _NOT_CHECKED for part in ("--disable-error-code", code)),
]
_MYPY = """
[mypy]
strict = True
python_version = 3.11
mypy_path = src
explicit_package_bases = True
namespace_packages = True
follow_imports = silent
warn_unused_ignores = False
enable_error_code = truthy-bool
"""
_PYPROJECT = """
[tool.pytest.ini_options]
pythonpath = ["."]
asyncio_mode = "auto"
asyncio_default_fixture_loop_scope = "function"
addopts = [
    "--import-mode=importlib", "-p", "no:cacheprovider", "-p", "no:valkey", "-p", "no:xdist",
    "-m", "not slow and not thorough", "-k", "{chosen}",
]
filterwarnings = ["error", "ignore::pytest.PytestUnknownMarkWarning"]

[tool.mutmut]
source_paths = ["src/rota"]
only_mutate = {modules}
also_copy = ["mypy.ini", "migrations"]
pytest_add_cli_args_test_selection = {tests}
type_check_command = {types}
timeout_multiplier = 4.0
timeout_constant = 2.0
use_git_change_detection = false
"""


def build_stage(room: Room) -> Path:
    """Write the room's folder. The results of earlier runs stay."""
    room.stage.mkdir(parents=True, exist_ok=True)
    for package in (room.stage / "mutants" / "src" / "rota").glob("*"):
        if package.is_dir() and package.name != room.name:
            shutil.rmtree(package)  # mutmut copies only missing files.
    for link, target in (("src", "service"), ("tests", "tests"), ("migrations", "migrations")):
        path = room.stage / link
        path.unlink(missing_ok=True)
        path.symlink_to(ROOT / target, target_is_directory=True)
    types = [*_TYPES, f"src/rota/{room.name}"]
    modules = _listed(tuple(f"src/rota/{room.name}/{module}" for module in room.modules))
    settings = _PYPROJECT.format(modules=modules, chosen=room.chosen, tests=_listed(room.tests), types=_listed(types))
    (room.stage / "pyproject.toml").write_text(settings)
    (room.stage / "mypy.ini").write_text(_MYPY)
    return room.stage


def _listed(texts: list[str] | tuple[str, ...]) -> str:
    return "[" + ", ".join(f'"{text}"' for text in texts) + "]"
