"""Rules for our sources that no linter knows, and a planted breach of each to show that it would be found."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator

import pytest

from tests.support.sources import (
    PURE,
    Source,
    functions_longer_than,
    impure_calls,
    loops_over_sets,
    pure_sources,
    sources,
)

Finder = Callable[[ast.Module], Iterator[ast.AST]]

MODULE_MAX_LINES = 1_000
PURE_FUNCTION_MAX_LINES = 60


def breaches(finder: Finder, looked_at: Iterable[Source]) -> list[str]:
    """Where the finder found something."""
    return [source.at(node) for source in looked_at for node in finder(source.tree)]


def long_functions(tree: ast.Module) -> Iterator[ast.AST]:
    return functions_longer_than(PURE_FUNCTION_MAX_LINES, tree)


def test_the_sources_looked_at_are_ours() -> None:
    packages = {source.package for source in sources()}

    assert packages >= {"client", "server", "storage", *PURE}
    assert "v1" not in packages


def test_the_cores_call_no_impure_builtin() -> None:
    assert breaches(impure_calls, pure_sources()) == []


def test_the_cores_decide_nothing_by_the_order_of_a_set() -> None:
    assert breaches(loops_over_sets, pure_sources()) == []


def test_functions_of_the_cores_fit_on_a_screen() -> None:
    assert breaches(long_functions, pure_sources()) == []


def test_importing_the_package_alone_brings_nothing_else_along() -> None:
    loaded = "import sys, rota; print(*(name for name in sys.modules if name.startswith('rota.')))"

    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout == "\n"


def test_no_module_grows_past_a_thousand_lines() -> None:
    lines = {source.at(source.tree): source.text.count("\n") for source in sources()}

    assert {place: count for place, count in lines.items() if count > MODULE_MAX_LINES} == {}


@pytest.mark.parametrize(
    ("finder", "planted"),
    [
        (impure_calls, "hash('name')"),
        (long_functions, "def long():\n" + "    step()\n" * PURE_FUNCTION_MAX_LINES),
        (loops_over_sets, "for one in {a, b}: pass"),
        (loops_over_sets, "class Group:\n    pending: set[str]\ndef f(group): return [one for one in group.pending]"),
    ],
)
def test_a_planted_breach_is_found(finder: Finder, planted: str) -> None:
    assert len(list(finder(ast.parse(planted)))) == 1


def test_an_order_that_is_given_or_does_not_matter_is_allowed() -> None:
    harmless = "for one in sorted({a, b}): late = max(one for one in set(a))"

    assert list(loops_over_sets(ast.parse(harmless))) == []
