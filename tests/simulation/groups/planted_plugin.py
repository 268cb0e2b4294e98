"""A plugin of pytest that runs each named test with its defect planted, and writes down by what it failed.

    python -m pytest -p tests.simulation.groups.planted_plugin --planted REPORT NODE[NAME] ...

The test `NODE` becomes `NODE[NAME]` for each row NAME of the table. Time limits are short: a planted defect may hang.
`NODE[NAME without]` is the same test under the same limits, but without the defect.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.client import virtual_time
from tests.simulation.groups.named import ROWS
from tests.simulation.groups.planting import Named

PARAMETER = "planted_defect"
WITHOUT = " without"
LIMIT_S = 300
"""Of virtual time, where a test is to fail by a timeout: the limit of `in_virtual_time` is a day."""
HERE = Path(__file__).parent
VARIABLE = "ROTA_PLANTED_DEFECT"
"""Names the defect that `started/sitecustomize.py` plants in each process of Python."""


def node_of(name: str, row: Named) -> str:
    """The node id of a row's test with the defect planted."""
    test, bracket, parameters = row.test.partition("[")
    return f"{test}[{parameters.removesuffix(']')}-{name}]" if bracket else f"{test}[{name}]"


def has_short_limit(row: Named) -> bool:
    """Whether the test is to fail by a timeout: then it has also to pass without the defect in so short a time."""
    return row.fails_with == "TimeoutError"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--planted", type=Path, required=True, help="Where to write what each row's test failed by.")


def pytest_configure(config: pytest.Config) -> None:
    config.getoption("--planted").write_text("")


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """After the test's own parameters, so that the row's name is the last of its id."""
    tests = {name: row.test.partition("[")[0].rpartition("::")[2] for name, row in ROWS.items()}
    names = [name for name, test in tests.items() if test == metafunc.definition.name]
    if names:
        metafunc.fixturenames.append(PARAMETER)
        metafunc.parametrize(PARAMETER, [each for name in names for each in (name, name + WITHOUT)])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Function) -> Generator[None, object, object]:
    """The defect is there before the test's fixtures are made, and until they have ended."""
    with _planted(str(item.callspec.params[PARAMETER])):
        return (yield)


@contextmanager
def _planted(given: str) -> Iterator[None]:
    name = given.removesuffix(WITHOUT)
    row = ROWS[name]
    with ExitStack() as stack:
        if has_short_limit(row):
            patched = stack.enter_context(pytest.MonkeyPatch.context())
            patched.setattr(virtual_time, "LIMIT_S", LIMIT_S)
        if row.in_processes and given == name:
            stack.enter_context(_in_processes(name))
        if given == name:
            stack.enter_context(row.planted())
        yield


@contextmanager
def _in_processes(name: str) -> Iterator[None]:
    paths = os.pathsep.join([str(HERE / "started"), str(HERE.parents[1])])
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(VARIABLE, name)
        patched.setenv("PYTHONPATH", paths)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call" or call.excinfo is not None:
        kinds = sorted(_kinds_of(call.excinfo.value)) if call.excinfo is not None else []
        line = {"test": item.nodeid, "when": call.when, "kinds": kinds}
        with item.config.getoption("--planted").open("a") as written:
            written.write(json.dumps(line) + "\n")
    return report


def _kinds_of(error: BaseException) -> Iterator[str]:
    """The names of the type of an exception; of a group, those of its members."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _kinds_of(each)
    else:
        yield from (kind.__name__ for kind in type(error).__mro__)
