"""A seed that violates a rule is shrunk to a small world that violates the same rule."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.shrink import faults_of, rule_of, shrink, size_of
from tests.simulation.sim import Choice, main, run_seed, run_seeds
from tests.simulation.trace import trace
from tests.simulation.without import NOTHING, Without
from tests.support.trace_hash import trace_hash

WITHIN = 100
"""Seeds to look through for one that finds a planted bug: a named one would be another world after the next change."""


def seed_that_finds(mutant: str) -> int:
    tally = run_seeds(range(WITHIN), Choice(mutant=mutant), stop_after=1)
    assert tally.failures, f"none of {WITHIN} seeds finds {mutant}"
    return next(iter(tally.failures))


def check_shrunk(mutant: str, most_plays: int) -> None:
    seed = seed_that_finds(mutant)
    with MUTANTS[mutant]():
        found = shrink(lambda without: run_seed(seed, without=without), NOTHING, most_plays)
    assert found is not None
    assert faults_of(found.world) < faults_of(found.first)
    assert 2 * size_of(found.world) <= size_of(found.first)
    with MUTANTS[mutant]():
        again, violations = run_seed(seed, without=Without.parse(str(found.world.without)))
    assert trace_hash(again.history) == trace_hash(found.world.history)
    assert found.rule in map(rule_of, violations)
    assert not run_seed(seed, without=found.world.without)[1], "it is the planted bug that violates the rule"


@pytest.mark.parametrize("mutant", ["reply_before_commit", "generation_not_bumped"])
def test_a_planted_bug_is_shown_by_a_shorter_world(mutant: str) -> None:
    check_shrunk(mutant, most_plays=60)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "mutant",
    [
        "a_leader_at_work_is_displaced",
        "pruning_does_not_wait_for_readers",
        "progress_is_shown_before_it_is_taken_in",
        "tombstone_forgotten",
    ],
)
def test_a_bug_under_certain_faults_is_shown_by_a_shorter_world(mutant: str) -> None:
    check_shrunk(mutant, most_plays=150)


def test_a_seed_that_violates_nothing_is_not_shrunk(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--first", "3", "--shrink"]) == 0
    assert "violates nothing" in capsys.readouterr().out


def test_the_command_prints_the_trace_and_how_to_replay_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--first", "50", "--shrink", "--mutant", "reply_before_commit"]) == 1

    printed = capsys.readouterr().out
    assert "D1 shard" in printed
    assert "replay: python -m tests.simulation.sim --first 50 --seeds 1" in printed
    assert "--mutant reply_before_commit --without" in printed


def test_a_world_whose_store_goes_back_is_shrunk_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--world", "setbacks", "--first", "2", "--shrink", "--mutant", "reply_before_commit"]) == 1

    printed = capsys.readouterr().out
    assert printed.splitlines()[-1].partition(" --without")[0].endswith("--world setbacks --mutant reply_before_commit")


def test_the_parts_left_out_are_read_as_they_are_written() -> None:
    without = Without(frozenset({"loss", "g0.2"}), frozenset({4, 17}), 3_500)

    assert Without.parse(str(without)) == without


def test_acts_that_are_left_out_are_not_in_the_trace() -> None:
    world, _ = run_seed(0, without=Without(frozenset({"churn"}), frozenset({0})))

    assert not any("churn" in line or "#0 " in line for line in trace(world.history))
