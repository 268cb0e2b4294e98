"""One table of defaults: each constant has a row with a reason, and no other module states such a number."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from docs.defaults_table import defaults_table
from rota.protocol import defaults
from tests.support.sources import sources

PLACES = ("adapters/", "agents/", "cli/", "client/", "core/membership/")
_TIME = ("_ms", "timeout", "timeout_s", "_interval", "_after", "delay", "debounce", "duration")


def stated_times(tree: ast.Module) -> Iterator[ast.AST]:
    """Literal numbers that are a time: as a parameter's default, a field's, an option's, or as an argument."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from (value for name, value in _parameters(node.args) if _is_stated(name, value))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if _is_stated(name, value):
                yield value
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if "TIMEOUT" in name and _is_number(value):
                yield value
            case ast.keyword(arg=str() as name, value=value) if _is_stated(name, value):
                yield value


def _parameters(given: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    """Those that have a default, with it."""
    positional = [*given.posonlyargs, *given.args]
    with_default = positional[len(positional) - len(given.defaults) :]
    yield from ((each.arg, value) for each, value in zip(with_default, given.defaults, strict=True))
    yield from ((each.arg, value) for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value)


def _is_stated(name: str, value: ast.expr) -> bool:
    """0 states that there is no wait at all, but of a drain it is the default."""
    is_zero = isinstance(value, ast.Constant) and value.value == 0
    return name.endswith(_TIME) and _is_number(value) and (name.startswith("drain") or not is_zero)


def _is_number(value: ast.expr) -> bool:
    """A number, or the smaller or larger of something and a number."""
    match value:
        case ast.Constant(value=int() | float() as number):
            return not isinstance(number, bool)
        case ast.Call(func=ast.Name(id="min" | "max"), args=arguments):
            return any(_is_number(each) for each in arguments)
    return False


def test_every_default_has_one_row_with_a_reason() -> None:
    constants = {name: value for name, value in vars(defaults).items() if name.endswith("_MS")}

    table = list(defaults_table())
    assert {row.name: row.value_ms for row in table} == constants
    assert [row.name for row in table if not (row.used_by and row.reason.endswith("."))] == []


def test_no_other_module_states_a_default_time() -> None:
    mine = [source for source in sources() if source.name.startswith(PLACES)]

    assert all(any(source.name.startswith(place) for source in mine) for place in PLACES)
    assert [source.at(node) for source in mine for node in stated_times(source.tree)] == []


@pytest.mark.parametrize(
    "planted",
    [
        "def leader(session_timeout: float = 10.0): ...",
        "def leader(*, drain_timeout: float = 0.0): ...",
        "def lead(wait: Annotated[int, Option('--wait')], timeout: float = 30.0): ...",
        "class Settings:\n    auto_commit_interval: float = 5.0",
        "SESSION_TIMEOUT_MS = 10_000",
        "client.leader(rebalance_timeout=max(session_timeout, 10.0))",
        "connect(url, retry_timeout=5.0)",
    ],
)
def test_a_stated_time_is_found(planted: str) -> None:
    assert len(list(stated_times(ast.parse(planted)))) == 1


def test_the_defaults_fit_together() -> None:
    assert 3 * defaults.HEARTBEAT_INTERVAL_MS < defaults.SESSION_TIMEOUT_MS
    assert defaults.STOP_DRAIN_MS < 10_000, "Docker kills after 10 s"
    assert defaults.WARN_AFTER_MS < 2_000
    assert defaults.LONGEST_RETRY_AFTER_MS < defaults.WARN_AGAIN_MS
