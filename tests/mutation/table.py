"""Bugs that are planted on purpose, the seed or test that finds each, and the counts of the last `make mutants`.

`python -m tests.mutation.table` writes them to build/mutants.md.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from docs.generate import table
from tests.mutation.measured import MEASURED, percent_found
from tests.mutation.survivors import read_survivors
from tests.simulation import group_mutants, replica_mutants, runtime_mutants
from tests.simulation.directed import DIRECTED
from tests.simulation.findings import findings_of
from tests.simulation.groups import plants as group_plants
from tests.simulation.groups.named import ROWS
from tests.simulation.mutants import MUTANTS
from tests.simulation.registry import ABOUT
from tests.simulation.test_mutants import BY_PROGRAMS, FOUND_BY, NOT_BY_SEEDS, RARE
from tests.support.sources import ROOT

_PAGE = ROOT / "build" / "mutants.md"
SERVER_HEADINGS = ("planted bug", "rule", "defect", "where", "finding", "found by")
CLIENT_HEADINGS = ("planted bug", "finding", "found by")
TOOL_HEADINGS = ("room", "made", "rejected by mypy", "texts", "left to the tests", "found", "survive")
SURVIVOR_HEADINGS = ("function", "mutation", "why it may survive")


def server_rows() -> Iterator[tuple[str, ...]]:
    """Bugs of the server's rules and its runtime, each planted in production code."""
    places = {**_places(group_mutants), **_places(replica_mutants), **_places(runtime_mutants)}
    for name in sorted(MUTANTS):
        about, findings = ABOUT[name], ", ".join(findings_of(name))
        place, found_by = places.get(name, "see there"), "; ".join(_found_by(name))
        yield f"`{name}`", about.rules, about.defect, place, findings, found_by


def _found_by(name: str) -> Iterator[str]:
    if name in BY_PROGRAMS:
        yield f"programs, seed {BY_PROGRAMS[name]}"
    elif name in FOUND_BY:
        yield f"simulator, seed {FOUND_BY[name]}"
    elif name not in NOT_BY_SEEDS | RARE:
        yield "simulator"
    if name in DIRECTED:
        yield _test(DIRECTED[name].node)


def client_rows() -> Iterator[tuple[str, ...]]:
    """Bugs of the SDK, of programs around it, and of storage."""
    for name, plant in group_plants.PLANTS.items():
        yield f"`{name}`", plant.finding, f"programs, seeds {', '.join(map(str, plant.seeds))}"
    for name, row in ROWS.items():
        yield f"`{name}`", row.finding, _test(row.test)


def tool_rows() -> Iterator[tuple[object, ...]]:
    """The counts of the last run of `make mutants`, by room."""
    for room, counts in json.loads(MEASURED.read_text()).items():
        left = counts["tests"] + counts["survived"]
        made = left + counts["types"] + counts["text"]
        found = f"{percent_found(counts):.1f} %"
        yield room, made, counts["types"], counts["text"], left, found, counts["survived"]


def survivor_rows() -> Iterator[tuple[str, ...]]:
    """The mutants that may survive, and why."""
    for survivor in read_survivors():
        removed, added = (_code(lines) for lines in (survivor.removed, survivor.added))
        yield f"`{survivor.function.removeprefix('rota.')}`", f"{removed} → {added}", survivor.why


def _code(lines: Sequence[str]) -> str:
    return f"`{' '.join(lines)}`" if lines else "nothing"


def _test(node: str) -> str:
    path, _, test = node.partition("::")
    return f"`{path.removeprefix('tests/')}` {test.partition('[')[0].removeprefix('test_').replace('_', ' ')}"


def _places(module: ModuleType) -> dict[str, str]:
    """By the name of a planted bug, the functions that it replaces."""
    functions = [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.FunctionDef)]
    found = {function.name: list(dict.fromkeys(_patched(function, vars(module)))) for function in functions}
    return {name: ", ".join(places) for name, places in found.items() if places}


def _patched(function: ast.FunctionDef, names: dict[str, Any]) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Name(id="patch"), args=[target, ast.Constant(value=str(attribute)), _]):
                yield _place(eval(ast.unparse(target), names), attribute)


def _place(target: Any, attribute: str) -> str:
    home = getattr(getattr(target, attribute), "__module__", None) or ""
    is_module = inspect.ismodule(target)
    if not home.startswith("rota."):  # A constant does not know where it is defined.
        home = target.__name__ if is_module else target.__module__
    shown = attribute if is_module else f"{target.__name__}.{attribute}"
    return f"{home.removeprefix('rota.').replace('.', '/')}.py `{shown}`"


def whole_table() -> str:
    """All rows, in Markdown."""
    parts = (
        ("Planted in the server", SERVER_HEADINGS, server_rows()),
        ("Planted in the SDK and in storage", CLIENT_HEADINGS, client_rows()),
        ("Made by mutmut", TOOL_HEADINGS, tool_rows()),
        ("Survivors that are allowed", SURVIVOR_HEADINGS, survivor_rows()),
    )
    return "\n\n".join(f"# {title}\n\n{table(headings, rows)}" for title, headings, rows in parts) + "\n"


if __name__ == "__main__":
    _PAGE.parent.mkdir(exist_ok=True)
    _PAGE.write_text(whole_table(), encoding="utf-8")
    print(_PAGE.relative_to(ROOT))
