"""The rules in TLA+, their planted bugs, the simulator's checks and the table in docs/model agree."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict

from tests.model.specification import JOURNAL_RULES, LIVENESS_RULES, PLANTED, STATE_RULES, STUCK
from tests.simulation import answer_checks, checks, history_checks, journal_checks
from tests.simulation.world import World
from tests.support.tlc import SPECIFICATIONS

ROW = re.compile(r"^\| (\w+): .*? \| (.*?) \| (.*?) \|$", re.MULTILINE)
RULES = {*JOURNAL_RULES, *STATE_RULES, *LIVENESS_RULES} - {"Effects"}
"""Effects says how the journal's variables follow from events: a bug in it is a bug of the specification."""


def table() -> dict[str, tuple[list[str], list[str]]]:
    """For each rule the simulator's checks and the planted bugs, as the page says."""
    page = (SPECIFICATIONS / "README.md").read_text()
    return {
        rule: (re.findall(r"`(.+?)`", checked), re.findall(r"`(.+?)`", bugs))
        for rule, checked, bugs in ROW.findall(page)
    }


def test_every_rule_has_a_planted_bug_and_the_page_names_it() -> None:
    planted = defaultdict[str, set[str]](set)
    for each in PLANTED:
        planted[each.rule].add(each.bounds.bug)
    for rule in LIVENESS_RULES:
        planted[rule].add(STUCK.bug)

    assert {rule: set(bugs) for rule, (_, bugs) in table().items()} == planted
    assert set(planted) == RULES


def test_every_check_on_the_page_exists_and_names_its_rule() -> None:
    for rule, (names, _) in table().items():
        sources = [_source(name) for name in names]
        assert any(re.search(rf"\b{rule}\b", source) for source in sources), f"{names} do not check {rule}"


def test_every_planted_bug_is_in_the_specification() -> None:
    source = (SPECIFICATIONS / "Rota.tla").read_text()

    assert set(re.findall(r'"(\w+)"', "".join(re.findall(r"Bug (?:=|#|\\in) [^\n]*", source)))) >= {
        *(planted.bounds.bug for planted in PLANTED),
        STUCK.bug,
    }


def _source(name: str) -> str:
    """The text of a check, by its name in the table."""
    name = name.removeprefix("checks.")
    if name.startswith("World."):
        return inspect.getsource(getattr(World, name.removeprefix("World.")))
    places = (answer_checks, checks, history_checks, journal_checks)
    found = [getattr(place, name) for place in places if hasattr(place, name)]
    assert found, f"there is no check {name}"
    return inspect.getsource(found[0])
