"""The rules in TLA+ hold in a small world, and TLC finds each planted bug by the rule that it breaks."""

from __future__ import annotations

import pytest

from tests.model.check import SMALL
from tests.model.specification import LIVENESS_RULES, PLANTED, SITUATIONS, STUCK, Bounds, Planted
from tests.support.tlc import check

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", SMALL)
def test_all_rules_hold_within_small_bounds(name: str) -> None:
    verdict = check("Rota", SMALL[name].configuration())

    assert verdict.violated == "", verdict.output
    assert verdict.distinct_states > 5_000


@pytest.mark.parametrize("name", ["eager", "cooperative"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_situation_is_reached_within_small_bounds(name: str, situation: str) -> None:
    verdict = check("Rota", SMALL[name].configuration(situation))

    assert verdict.violated == situation, verdict.output


def test_join_phases_end_and_members_agree_if_all_go_on() -> None:
    verdict = check("Rota", Bounds(members=1, max_gen=9, max_ahead=0).fair_configuration())

    assert verdict.violated == "", verdict.output


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_planted_bug_is_found_by_its_rule(planted: Planted) -> None:
    verdict = check("Rota", planted.bounds.configuration(planted.rule))

    assert verdict.violated == planted.rule, verdict.output


@pytest.mark.parametrize("rule", LIVENESS_RULES)
def test_a_member_that_never_expires_breaks_a_liveness_rule(rule: str) -> None:
    verdict = check("Rota", STUCK.fair_configuration(rule))

    assert verdict.violated == "temporal", verdict.output
