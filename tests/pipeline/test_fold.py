"""The fold: any cut of a journal gives the same facts, and the facts are what a reader of the history would say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.pipeline.facts.fact import Row
from rota.pipeline.failures import LakeRefused
from rota.pipeline.fold import CARRIED, GroupFold, Key, fold_group
from rota.pipeline.tables import CURRENT, GOLD, Line
from rota.protocol.causes import CAUSES, Cause
from tests.pipeline.journals import SIMULATED, ordered, simulated
from tests.pipeline.replaying import fold_lines, table_of

SEEDS = (1, 2, 4, 5)


def folded(lines: Iterable[Line], states: dict[Key, str]) -> tuple[Counter[str], dict[Key, str]]:
    """Fold a batch as Spark does: the complete rows as text, how often each, and the states of all groups after it."""
    rows: Counter[str] = Counter()
    after = dict(states)
    for key, of_group in groupby(lines, key=lambda line: (line.shard_id, line.namespace, line.group_id)):
        carried = [carried_line(key, states[key])] if key in states else []
        found = fold_group(key, table_of([*of_group, *carried]), SIMULATED).to_pylist()
        rows.update(repr(each) for each in found if each["fact"] != CURRENT.name)
        (after[key],) = (each["carry"] for each in found if each["fact"] == CURRENT.name)
    return rows, after


def carried_line(key: Key, state: str) -> Line:
    shard_id, namespace, group_id = key
    seq = json.loads(state)["view"]["seq"]
    return Line(shard_id, seq, 0, 0, namespace, group_id, 0, CARRIED, "", state)


def all_rows(seed: int) -> list[Row]:
    """Closed and open rows of a whole journal."""
    rows: list[Row] = []
    for _, group, found in fold_lines(ordered(simulated(seed)), SIMULATED):
        rows += found
        rows += group.open_rows()
    return rows


@pytest.mark.parametrize("seed", SEEDS)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_cut_of_the_journal_gives_the_same_facts(seed: int, data: st.DataObject) -> None:
    journal = simulated(seed)
    ends = {
        shard: max(line.seq for line in journal if line.shard_id == shard) for shard in {x.shard_id for x in journal}
    }
    whole, whole_states = folded(ordered(journal), {})

    rows: Counter[str] = Counter()
    states: dict[Key, str] = {}
    done = dict.fromkeys(ends, 0)
    for last in (False, False, False, True):
        # Each shard is cut wherever it is, also far ahead of the others.
        to = {s: ends[s] if last else data.draw(st.integers(done[s], ends[s])) for s in ends}
        new = [line for line in journal if done[line.shard_id] < line.seq <= to[line.shard_id]]
        found, states = folded(ordered(new), states)
        rows += found
        again, _ = folded(ordered(new), states)  # a batch that was killed after its states were written
        assert not again
        done = to

    assert rows == whole
    assert states == whole_states


@pytest.mark.parametrize("seed", SEEDS)
def test_every_rebalance_has_a_cause_that_is_a_known_word(seed: int) -> None:
    at = [column.name for column in GOLD["rebalances"].columns].index("cause")

    causes = Counter(row.values[at] for row in all_rows(seed) if row.table == "rebalances")

    assert causes.total() > 5
    assert causes.keys() <= CAUSES.keys() - {Cause.OTHER}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_generation_is_in_one_rebalance(seed: int) -> None:
    opened = Counter(
        (line.group_id, json.loads(line.payload)["generation_id"])
        for line in simulated(seed)
        if line.kind in ("generation_completed", "group_emptied")
        or (line.kind == "assignment_synced" and json.loads(line.payload)["resync"])
    )

    columns = [column.name for column in GOLD["rebalances"].columns]
    rows = [dict(zip(columns, row.values, strict=True)) for row in all_rows(seed) if row.table == "rebalances"]

    assert Counter((row["group_id"], row["generation_id"]) for row in rows if row["generation_id"]) == opened


def test_a_carried_state_is_json_and_goes_on_unchanged() -> None:
    journal = [line for line in ordered(simulated(1)) if line.group_id == "g0"]
    straight, cut = GroupFold("sim", "g0"), GroupFold("sim", "g0")

    for line in journal:
        expected = list(straight.add(line))
        carried = cut.dump()
        cut = GroupFold("sim", "g0")
        cut.resume(json.loads(carried))
        assert list(cut.add(line)) == expected
    assert cut.dump() == straight.dump()


def test_a_state_of_another_release_is_refused() -> None:
    with pytest.raises(LakeRefused, match="another release"):
        GroupFold("sim", "g0").resume({**json.loads(GroupFold("sim", "g0").dump()), "form": 0})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("part", [0.3, 0.6])
def test_a_pruned_journal_gives_members_and_generations(seed: int, part: float) -> None:
    """Of groups without their beginning, the lines that are left name the members of a generation."""
    journal = simulated(seed)
    ends = {s: part * max(line.seq for line in journal if line.shard_id == s) for s in {x.shard_id for x in journal}}
    left = [line for line in journal if line.seq > ends[line.shard_id]]
    whole = {(r["group_id"], r["generation_id"], r["at"]): r["members"] for r in named(journal, "assignments")}
    completed = {(x.group_id, json.loads(x.payload)["generation_id"]) for x in left if x.kind == "generation_completed"}
    generations = {(line.group_id, line.generation_id) for line in left} | completed

    pruned = named(left, "assignments")
    states = named(left, "group_states")

    since = [r for r in pruned if (r["group_id"], r["generation_id"]) in completed]
    assert len(since) > 0
    assert [r["members"] for r in since] == [whole[r["group_id"], r["generation_id"], r["at"]] for r in since]
    assert {(r["group_id"], r["generation_id"]) for r in states} <= generations


def named(lines: Iterable[Line], table: str) -> list[dict[str, Any]]:
    """The closed rows of a table, by the names of its columns."""
    columns = [column.name for column in GOLD[table].columns]
    found = [each for _, _, rows in fold_lines(ordered(list(lines)), SIMULATED) for each in rows]
    return [dict(zip(columns, row.values, strict=True)) for row in found if row.table == table]


# --- lines that cannot be read --------------------------------------------------------------------------


def with_payload(journal: list[Line], kind: str, change: Callable[[str], str]) -> tuple[list[Line], Line]:
    """The journal with another payload in one line of this kind, and that line."""
    place = [number for number, line in enumerate(journal) if line.kind == kind][1]
    poisoned = journal[place]._replace(payload=change(journal[place].payload))
    return [*journal[:place], poisoned, *journal[place + 1 :]], poisoned


BROKEN: dict[str, Callable[[str], str]] = {
    "cut off": lambda payload: payload[:-5],
    "a list": lambda payload: f"[{payload}]",
    "without fields": lambda payload: "{}",
    "not JSON": lambda payload: "not JSON",
    "empty": lambda payload: "",
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("kind", ["offsets_committed", "generation_completed", "member_joined", "assignment_synced"])
def test_an_unreadable_line_is_named_and_the_fold_goes_on(kind: str, broken: str) -> None:
    journal, poisoned = with_payload(ordered(simulated(1)), kind, BROKEN[broken])

    found = [row for _, _, rows in fold_lines(journal, SIMULATED) for row in rows]

    names = [column.name for column in GOLD["unreadable"].columns]
    [found_row] = [dict(zip(names, row.values, strict=True)) for row in found if row.table == "unreadable"]
    assert (found_row["shard_id"], found_row["seq"], found_row["kind"]) == (poisoned.shard_id, poisoned.seq, kind)
    assert found_row["error"]
    assert len(found) >= 0.9 * len(closed_rows(1))


@pytest.mark.parametrize("seed", SEEDS)
def test_each_line_of_a_true_journal_can_be_read(seed: int) -> None:
    assert [row for row in closed_rows(seed) if row.table == "unreadable"] == []


def closed_rows(seed: int) -> list[Row]:
    return [row for _, _, rows in fold_lines(ordered(simulated(seed)), SIMULATED) for row in rows]
