"""The facts against a naive oracle that replays the core, and the least moves against trying everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import groupby, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.demo.workload.fleet import HOUR_MS, draw_group
from rota.demo.workload.shard import ShardWorld
from rota.pipeline.facts.rebalances import ASSIGNED, DELETED, OUTCOMES, REASSIGNED
from rota.pipeline.facts.steps import Holding
from rota.pipeline.sections import FLAPPING
from rota.pipeline.tables import GOLD, Line
from tests.pipeline import oracle
from tests.pipeline.journals import SIMULATED, UNTIL_MS, ordered, simulated
from tests.pipeline.replaying import fold_lines

SEEDS = (1, 2, 3, 5, 8, 13)
ENDINGS = (*SEEDS, 9, 10, 19, 26)
"""In the others leaders fail to assign, or come too late, or a new owner forgets what had superseded a rebalance."""
each_seed = pytest.mark.parametrize("seed", SEEDS)
Facts = dict[str, list[dict[str, Any]]]


def groups_of(seed: int) -> list[list[Line]]:
    by_group = groupby(ordered(simulated(seed)), key=lambda line: (line.shard_id, line.namespace, line.group_id))
    return [list(lines) for (_, _, group_id), lines in by_group if group_id]


@cache
def facts(seed: int) -> list[Facts]:
    """For each group all rows by table, closed and open, as dictionaries."""
    return terms(ordered(simulated(seed)))


def terms(lines: list[Line]) -> list[Facts]:
    shown = []
    for (_, _, group_id), fold, rows in fold_lines(lines, SIMULATED):
        found = [*rows, *fold.open_rows()]
        if group_id:
            shown.append({table: [as_dict(table, r.values) for r in found if r.table == table] for table in GOLD})
    return shown


def as_dict(table: str, values: Sequence[Any]) -> dict[str, Any]:
    return dict(zip([column.name for column in GOLD[table].columns], values, strict=True))


def ms(at_us: int | None) -> int | None:
    return None if at_us is None else at_us // 1000


@each_seed
def test_time_in_states_adds_up(seed: int) -> None:
    for lines, shown, of_group in zip(
        groups_of(seed), facts(seed), oracle.steps(ordered(simulated(seed))), strict=True
    ):
        spent: Counter[str] = Counter()
        for row in shown["group_states"]:
            open_ms = lines[-1].at_ms - row["from_at"] // 1000
            spent[row["state"]] += max(0, open_ms) if row["ms"] is None else row["ms"]
        assert +spent == oracle.time_in_states(of_group)


@each_seed
def test_members_were_there_from_when_to_when(seed: int) -> None:
    for shown, of_group in zip(facts(seed), oracle.steps(ordered(simulated(seed))), strict=True):
        rows = Counter((row["member_id"], ms(row["joined_at"]), ms(row["ended_at"])) for row in shown["members"])
        assert rows == oracle.presences(of_group)


@each_seed
def test_leaders_led_from_when_to_when_and_nobody_for_how_long(seed: int) -> None:
    for shown, of_group in zip(facts(seed), oracle.steps(ordered(simulated(seed))), strict=True):
        rows = [
            (row["leader_id"], ms(row["from_at"]), ms(row["to_at"]), row["gap_ms"], row["generations"])
            for row in shown["leader_tenures"]
        ]
        assert rows == oracle.leaderships(of_group)


@each_seed
def test_assignments_moved_what_changed_hands(seed: int) -> None:
    for shown, of_group in zip(facts(seed), oracle.steps(ordered(simulated(seed))), strict=True):
        columns = ("members", "units", "moves", "forced_moves", "revoked", "stddev")
        rows = [tuple(row[name] for name in columns) for row in shown["assignments"]]
        assert rows == [pytest.approx(wanted) for wanted in oracle.assigned(of_group)]


@each_seed
def test_refused_requests_are_counted_by_hour(seed: int) -> None:
    for lines, shown in zip(groups_of(seed), facts(seed), strict=True):
        rows: Counter[tuple[str, str, str, int]] = Counter()
        for row in shown["fenced"]:
            rows[row["member_id"], row["operation"], row["error"], row["hour"] // 3_600_000_000] += row["times"]
        assert rows == oracle.fenced(lines)


@pytest.mark.parametrize("seed", ENDINGS)
def test_rebalances_end_as_they_did(seed: int) -> None:
    for shown, of_group in zip(facts(seed), oracle.steps(ordered(simulated(seed))), strict=True):
        rows = [(attempt_of(row), row) for row in shown["rebalances"]]
        assert Counter(tried for tried, _ in rows) == Counter(oracle.attempts(of_group))
        for tried, row in rows:
            assert row["join_ms"] == took(tried.since_ms, tried.joined_ms)
            assert row["duration_ms"] == took(tried.since_ms, tried.until_ms)
            if tried.outcome != REASSIGNED:
                assert row["sync_ms"] == (took(tried.joined_ms, tried.until_ms) if tried.outcome == ASSIGNED else None)


def attempt_of(row: dict[str, Any]) -> oracle.Attempt:
    began_ms = row["started_at"] // 1000
    return oracle.Attempt(began_ms, row["generation_id"], ms(row["completed_at"]), ms(row["ended_at"]), row["outcome"])


def took(from_ms: int | None, to_ms: int | None) -> int | None:
    return None if from_ms is None or to_ms is None else max(0, to_ms - from_ms)


@pytest.mark.parametrize("seed", ENDINGS)
def test_rebalances_began_for_what_the_line_before_says(seed: int) -> None:
    for shown, of_group in zip(facts(seed), oracle.steps(ordered(simulated(seed))), strict=True):
        rows = [row for row in shown["rebalances"] if row["outcome"] != REASSIGNED]
        assert Counter((row["started_at"] // 1000, row["cause"]) for row in rows) == oracle.causes(of_group)


def test_rebalances_of_these_worlds_end_in_every_possible_way() -> None:
    rows = [row for seed in ENDINGS for shown in facts(seed) for row in shown["rebalances"]]

    assert {row["outcome"] for row in rows if row["ended_at"]} == OUTCOMES.keys() - {DELETED}


@each_seed
def test_who_came_and_went_makes_the_next_generation(seed: int) -> None:
    for shown, of_group in zip(facts(seed), oracle.steps(ordered(simulated(seed))), strict=True):
        rows = [row for row in shown["rebalances"] if row["generation_id"] and row["outcome"] != "reassigned"]
        sizes = [(r["generation_id"], r["members_before"], r["members_after"], r["leader_id"]) for r in rows]
        assert sizes == oracle.generations(of_group)
        for row in rows:
            went = row["left"] + row["expired"] + row["removed"]
            assert row["members_before"] + row["joined"] - went == row["members_after"]


@each_seed
def test_offsets_went_on_by_the_hour(seed: int) -> None:
    for lines, shown in zip(groups_of(seed), facts(seed), strict=True):
        columns = ("commits", "first_offset", "last_offset", "stall_ms", "went_back")
        rows = Counter(
            (row["topic"], row["partition"], row["hour"] // 3_600_000_000, *(row[name] for name in columns))
            for row in shown["offsets"]
        )
        assert rows == oracle.progress(lines)


@each_seed
def test_heartbeats_are_those_of_the_statistics(seed: int) -> None:
    for lines, shown in zip(groups_of(seed), facts(seed), strict=True):
        columns = ("heartbeats", "p50_ms", "p99_ms", "p999_ms")
        rows = Counter(
            (row["member_id"], ms(row["to_at"]), *(row[name] for name in columns)) for row in shown["heartbeats"]
        )
        assert rows == oracle.heartbeat_rows(lines)


@each_seed
def test_who_comes_and_goes_is_counted_by_the_hour(seed: int) -> None:
    for shown, of_group in zip(facts(seed), oracle.steps(ordered(simulated(seed))), strict=True):
        assert flapping_rows(shown) == oracle.flapping(of_group)


def flapping_rows(shown: Facts) -> Counter[tuple[Any, ...]]:
    columns = ("sessions_in_hour", "flapping", "median_session_ms")
    return Counter(
        (row["member_id"], ms(row["ended_at"]), *(row[name] for name in columns))
        for row in shown["members"]
        if row["ended_at"] is not None
    )


def test_a_wavering_autoscaler_gets_daily_timeout_advice() -> None:
    plan = draw_group(5, seed=7)
    world = ShardWorld(0, [plan], seed=7, starts_at_ms=UNTIL_MS - 5 * HOUR_MS)
    lines = ordered([Line(*row) for row in world.run(UNTIL_MS)])
    [shown], of_group = terms(lines), next(oracle.steps(lines))

    flapping, advice = flapping_rows(shown), advice_rows(shown)

    assert plan.scale_every_ms
    assert max(cycles for _, _, _, cycles, _ in flapping) >= FLAPPING
    assert [recommended is None for _, _, recommended, _, _ in advice] == [True, False]
    assert flapping == oracle.flapping(of_group)
    assert advice == [pytest.approx(row) for row in oracle.advised(line for line in lines if line.group_id)]


def advice_rows(shown: Facts) -> list[tuple[Any, ...]]:
    columns = ("session_timeout_ms", "recommended_ms", "false_expiries_per_day", "recommended_false_per_day")
    return [(ms(row["at"]), *(row[name] for name in columns)) for row in shown["timeout_advice"]]


@each_seed
def test_timeouts_are_advised_by_the_statistics(seed: int) -> None:
    for lines, shown in zip(groups_of(seed), facts(seed), strict=True):
        assert advice_rows(shown) == [pytest.approx(row) for row in oracle.advised(lines)]


@each_seed
def test_shards_went_from_owner_to_owner(seed: int) -> None:
    of_shards = groupby(ordered(simulated(seed)), key=lambda line: (line.shard_id, line.group_id))
    lines = [line for (_, group_id), of_shard in of_shards if not group_id for line in of_shard]
    found = [row for _, fold, rows in fold_lines(lines) for row in (*rows, *fold.open_rows())]

    rows = [as_dict("failovers", row.values) for row in found if row.table == "failovers"]

    shown = [(row["shard_id"], row["epoch"], row["from_replica"], row["to_replica"], row["gap_ms"]) for row in rows]
    expected = [(s, *x) for s in sorted({x.shard_id for x in lines}) for x in oracle.owners(of_shard_in(lines, s))]
    assert shown == expected
    assert len(shown) > 2


def of_shard_in(lines: list[Line], shard_id: int) -> list[Line]:
    return [line for line in lines if line.shard_id == shard_id]


@st.composite
def small_changes(draw: st.DrawFn) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The holders of some units before, and after: few enough for trying everything."""
    units = [f"u{n}" for n in range(draw(st.integers(0, 5)))]
    old, new = draw(st.sets(st.sampled_from("abc"))), draw(st.sets(st.sampled_from("abcd"), min_size=1))
    before: dict[str, list[str]] = {member: [] for member in sorted(old)}
    after: dict[str, list[str]] = {member: [] for member in sorted(new)}
    for unit in units:
        if old:
            before[draw(st.sampled_from(sorted(old)))].append(unit)
        after[draw(st.sampled_from(sorted(new)))].append(unit)
    return before, after


@settings(max_examples=50)
@given(change=small_changes())
def test_least_moves_are_those_of_the_best_as_even_assignment(
    change: tuple[dict[str, list[str]], dict[str, list[str]]],
) -> None:
    before, after = change
    units = sorted(unit for share in after.values() for unit in share)
    held = {unit: member for member, share in before.items() for unit in share}
    now = {unit: member for member, share in after.items() for unit in share}
    sizes = [len(share) for share in after.values()]
    moves = {
        tried: sum(unit in held and held[unit] != member for unit, member in zip(units, tried, strict=True))
        for tried in product(after, repeat=len(units))
        if all(min(sizes) <= tried.count(member) <= max(sizes) for member in after)
    }

    found = Holding(after).change_from(Holding(before))

    assert found.least_moves == min(moves.values())
    assert found.moves == moves[tuple(now[unit] for unit in units)]
