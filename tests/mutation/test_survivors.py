"""The files that `make mutants` reads and writes, checked without playing a mutant."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.mutation import stage
from tests.mutation.measured import MEASURED, percent_found
from tests.mutation.outcomes import SURVIVED, TESTS, TYPES, Mutant, read_outcomes
from tests.mutation.survivors import Survivor, read_survivors
from tests.support.sources import PACKAGE

MUTATED = """
def x_twice__mutmut_orig(number):
    return number * 2 if number else 0
def x_twice__mutmut_1(number):
    return number / 2 if number else 0
def x_twice__mutmut_2(number):
    return number * 3 if number else 0
def x_twice__mutmut_3(number):
    return None
"""
SPANS = {f"x_twice__mutmut_{name}": [2 * at, 2 * at + 1] for at, name in enumerate(("orig", 1, 2, 3), 1)}


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> stage.Room:
    """A room with a function and three mutants of it: one was found, one survived, one has wrong types."""
    monkeypatch.setattr(stage, "STAGES", tmp_path)
    room = stage.Room("group", ())
    folder = room.stage / "mutants" / "src" / "rota" / "core" / "group"
    folder.mkdir(parents=True)
    codes = {f"rota.core.group.numbers.x_twice__mutmut_{number}": code for number, code in ((1, 1), (2, 0), (3, 37))}
    (folder / "numbers.py").write_text(MUTATED)
    (folder / "numbers.py.spans").write_text(json.dumps({"spans": SPANS}))
    (folder / "numbers.py.meta").write_text(json.dumps({"exit_code_by_key": codes}))
    return room


def test_outcomes_are_read_with_the_change_of_each_mutant(played: stage.Room) -> None:
    mutants = read_outcomes(played)

    assert {(mutant.function, mutant.found_by) for mutant in mutants} == {
        ("rota.core.group.numbers.twice", TESTS),
        ("rota.core.group.numbers.twice", SURVIVED),
        ("rota.core.group.numbers.twice", TYPES),
    }
    (survivor,) = [mutant for mutant in mutants if mutant.found_by == SURVIVED]
    assert survivor.removed == ("return number * 2 if number else 0",)
    assert survivor.added == ("return number * 3 if number else 0",)


@pytest.mark.parametrize(
    ("before", "after", "is_of_text"),
    [
        ('why = "it was free"', 'why = "XXit was freeXX"', True),
        ('why = f"member {name} joined"', 'why = f"MEMBER {name} JOINED"', True),
        ('kind = "member_left"', 'kind = "XXmember_leftXX"', False),
        ("return 1", "return 2", False),
        ("return f(a, b)", "return f(a, )", False),
    ],
)
def test_a_change_of_a_text_for_people_is_recognised(before: str, after: str, is_of_text: bool) -> None:
    assert Mutant("f", (before,), (after,), SURVIVED).is_of_text is is_of_text


# --- the list of survivors -----------------------------------------------------------------------------


@pytest.mark.parametrize("survivor", read_survivors(), ids=lambda each: each.function)
def test_each_listed_line_still_stands_in_the_sources(survivor: Survivor) -> None:
    lines = _lines_of(survivor.function)

    assert survivor.why
    assert set(survivor.removed) <= lines, f"{survivor.function} has changed: run make mutants"


def test_the_last_measurement_is_within_the_bound() -> None:
    measured = json.loads(MEASURED.read_text())

    assert measured.keys() == stage.ROOMS.keys()
    assert all(percent_found(counts) >= 90 for counts in measured.values())
    listed = [survivor.room for survivor in read_survivors()]
    assert {name: counts["survived"] for name, counts in measured.items()} == {
        name: listed.count(name) for name in measured
    }


def _lines_of(function: str) -> set[str]:
    """The lines of a function or method, without indentation, comments included."""
    room, module, *names = function.removeprefix("rota.").replace("core.", "core/", 1).split(".")
    path = PACKAGE / room / f"{module}.py"
    source = path.read_text()
    node: ast.AST = ast.parse(source)
    for name in names:
        body = getattr(node, "body", [])
        node = next(each for each in body if getattr(each, "name", "") == name)
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return {line.strip() for line in source.splitlines()[node.lineno - 1 : node.end_lineno]}
