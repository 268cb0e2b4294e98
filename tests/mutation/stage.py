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

_NOT_QUICK = ("test_random_commands.py",)


def _files(folder: str, pattern: str) -> tuple[str, ...]:
    paths = sorted((ROOT / folder).glob(pattern))
    return tuple(str(path.relative_to(ROOT)) for path in paths if path.name not in _NOT_QUICK)


def _contracts(*subjects: str) -> tuple[str, ...]:
    return tuple(f"tests/contracts/test_{subject}.py" for subject in subjects)


def _tests(file: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{file}.py::test_{name}" for name in names)


# The rules of forwarding, leases and owners are driven by the runtime that follows them.
_RUNTIME = tuple(
    f"tests/runtime/test_{subject}.py"
    for subject in ("answers", "directory", "dropped_shards", "forwarding", "leases", "routing", "shared_sessions")
)
_LEASES = _contracts("shard_leases", "store_went_back")
_ROWS = _tests(
    "contracts/test_shard_rows",
    "every_kind_of_row_is_loaded_as_it_was_written",
    "a_row_deleted_and_written_in_one_batch_is_written",
)
_APPENDS = (
    *_tests(
        "contracts/test_shard_rows",
        "a_row_written_again_replaces_all_its_columns",
        "deleted_rows_are_gone_and_their_neighbours_stay",
        "one_shard_cannot_touch_the_rows_of_another",
    ),
    *_tests(
        "contracts/test_shard_store",
        "an_old_epoch_is_rejected_while_other_shards_land",
        "an_old_epochs_deletions_are_refused_too",
        "a_batch_beyond_the_journals_end_is_rejected",
    ),
    *_tests("contracts/test_shard_leases", "an_append_of_another_replica_at_this_epoch_is_rejected"),
    *_tests("contracts/test_store_went_back", "postgres_refuses_to_take_over_a_lost_side_commit"),
)
_GATE = _tests(
    "fencing/test_gate",
    "an_advisory_lock_of_the_gate_is_terminated",
    "a_session_of_rotas_own_role_is_terminated",
    "a_server_without_the_right_names_the_role_in_the_way",
)


@dataclass(frozen=True, slots=True)
class Room:
    """A package of the product, or some of its modules, and the quick tests that are to find their mutants."""

    name: str
    tests: tuple[str, ...]
    modules: tuple[str, ...] = ()
    """The modules of `storage/` that are mutated; if there are none, all of the package that the room is called by."""
    chosen: str = "test"
    """The tests that are played, as pytest's -k has it."""

    @property
    def stage(self) -> Path:
        return STAGES / self.name

    @property
    def patience_s(self) -> int:
        """What tests may take longer than before, a fourth of it: stores are slow on a busy machine."""
        return 30 if self.modules else 2

    @property
    def package(self) -> str:
        """Its path below `rota`."""
        if self.modules:
            return "storage"
        return self.name if self.name == "fencing" else f"core/{self.name}"

    @property
    def sources(self) -> list[str]:
        """Folders and files, below the stage."""
        return [f"src/rota/{self.package}/{module}.py" for module in self.modules] or [f"src/rota/{self.package}"]


# In `storage/`, engines, files, URLs, backups and migrations are not mutated: they call libraries and the system.
ROOMS = {
    room.name: room
    for room in (
        Room("membership", _files("tests/unit", "test_membership*.py")),
        Room("replica", (*_files("tests/unit/replica", "test_*.py"), *_RUNTIME)),
        Room("group", (*_files("tests/unit/group", "test_*.py"), "tests/conformance/test_classic.py")),
        Room("fencing", _files("tests/fencing", "test_[kt]*.py")),
        Room(
            "storage",
            _contracts("shard_store", "shard_rows", "pruning", "store_went_back"),
            ("pruning", "rows"),
            # A role belongs to the whole server, so a test that makes one runs there once.
            "not memory and not pgbouncer and not may_not_delete and (not postgres or pruning or postgres_refuses)",
        ),
        Room(
            "storage_leases",
            (*_LEASES, *_contracts("append_races"), *_ROWS),
            ("leases",),
            "not memory and not pgbouncer",
        ),
        Room(
            "storage_appends",
            (*_contracts("append_races"), *_ROWS, *_APPENDS, *_GATE),
            ("append", "gate"),
            "not memory and not pgbouncer",
        ),
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
    "-p", "tests.mutation.forks",
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
timeout_constant = {patience_s}.0
use_git_change_detection = false
"""


def build_stage(room: Room) -> Path:
    """Write the room's folder. The results of earlier runs stay."""
    room.stage.mkdir(parents=True, exist_ok=True)
    mutants = room.stage / "mutants" / "src" / "rota"
    for package in (*(mutants / "core").glob("*"), *mutants.glob("*")):
        if package.is_dir() and not f"{room.package}/".startswith(f"{package.relative_to(mutants)}/"):
            shutil.rmtree(package)  # mutmut copies only missing files.
    for link, target in (("src", "service"), ("tests", "tests"), ("migrations", "migrations")):
        path = room.stage / link
        path.unlink(missing_ok=True)
        path.symlink_to(ROOT / target, target_is_directory=True)
    types = [*_TYPES, *room.sources]
    modules = _listed([source if source.endswith(".py") else f"{source}/*" for source in room.sources])
    settings = _PYPROJECT.format(
        modules=modules,
        chosen=room.chosen,
        tests=_listed(room.tests),
        types=_listed(types),
        patience_s=room.patience_s,
    )
    (room.stage / "pyproject.toml").write_text(settings)
    (room.stage / "mypy.ini").write_text(_MYPY)
    return room.stage


def _listed(texts: list[str] | tuple[str, ...]) -> str:
    return "[" + ", ".join(f'"{text}"' for text in texts) + "]"


def room_of(function: str) -> str:
    """The room of a function by its dotted name."""
    package, module, *_ = function.removeprefix("rota.").replace("core.", "core/", 1).split(".")
    return next(
        room.name for room in ROOMS.values() if room.package == package and module in (room.modules or (module,))
    )
