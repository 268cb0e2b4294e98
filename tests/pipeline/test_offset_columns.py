"""Offsets folded by columns: the rows that folding line by line gives, wherever the journal is cut."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.group.journal import payload_of
from rota.group.records import CommittedOffset, OffsetsCommitted
from rota.pipeline.committed import typed_offsets
from rota.pipeline.events import EVENTS, Line
from rota.pipeline.facts.offset_columns import Ends, fold_offsets, refuse_unreadable, telling_commits
from rota.pipeline.fold import GroupFold
from rota.pipeline.gold import ends_of
from rota.pipeline.tables import CURRENT_OFFSETS, GOLD, OFFSET_LISTS
from tests.pipeline.journals import SIMULATED, ordered, simulated
from tests.pipeline.replaying import fold_lines

COMMITS, HOUR_MS = "offsets_committed", 3_600_000


def table_of(lines: list[Line]) -> pa.Table:
    """Lines as bronze has them."""
    columns = list(zip(*lines, strict=True)) or [()] * len(EVENTS)
    arrays = [
        pa.array([at_ms * 1000 for at_ms in column] if field.name == "at" else column, field.type)
        for column, field in zip(columns, EVENTS, strict=True)
    ]
    table = pa.Table.from_arrays(arrays, schema=EVENTS)
    return table.append_column("offsets", _offsets_of(lines))


def _offsets_of(lines: list[Line]) -> pa.ListArray:
    read = pa.array([line.payload if line.kind == COMMITS else None for line in lines], pa.string())
    return typed_offsets(read) if lines and lines[0].kind == COMMITS else pa.nulls(len(lines), OFFSET_LISTS)


def rows_of(table: pa.Table) -> Counter[str]:
    columns = [
        table.column(field.name).cast(pa.int64()) if pa.types.is_timestamp(field.type) else table.column(field.name)
        for field in GOLD["offsets"].schema
    ]
    return Counter(repr(values) for values in zip(*(column.to_pylist() for column in columns), strict=True))


def by_columns(slices: list[list[Line]]) -> tuple[Counter[str], Counter[str]]:
    """Closed and open rows."""
    closed: Counter[str] = Counter()
    opened = CURRENT_OFFSETS.schema.empty_table()
    for lines in slices:
        commits = table_of([line for line in lines if line.kind == COMMITS])
        ends = ends_of(table_of([line for line in lines if line.kind != COMMITS]))
        rows, opened = fold_offsets(commits, ends, opened)
        closed += rows_of(rows)
    return closed, rows_of(opened)


def by_lines(lines: list[Line]) -> tuple[Counter[str], Counter[str]]:
    closed: Counter[str] = Counter()
    opened: Counter[str] = Counter()
    for _, group, rows in fold_lines(ordered(lines), SIMULATED):
        closed.update(repr(row.values) for row in rows if row.table == "offsets")
        opened.update(repr(row.values) for row in group.open_rows() if row.table == "offsets")
    return closed, opened


@st.composite
def histories(draw: st.DrawFn) -> list[list[Line]]:
    """Commits of few partitions over some hours, whose clock also goes back, with deletes; in slices."""
    lines, at_ms = [], 10 * HOUR_MS
    for seq in range(1, draw(st.integers(1, 40)) + 1):
        at_ms += draw(st.sampled_from([0, 1, 60_000, HOUR_MS, -HOUR_MS, 7 * HOUR_MS]))
        kind = draw(st.sampled_from([COMMITS] * 8 + ["offsets_deleted", "group_deleted"]))
        partitions = draw(st.lists(st.tuples(st.sampled_from("tu"), st.integers(0, 1)), min_size=1, max_size=3))
        payload: dict[str, Any] = {
            COMMITS: {"offsets": [[*each, draw(st.integers(0, 5)), None, 'x\\u00e9"], ['] for each in partitions]},
            "offsets_deleted": {"partitions": [list(each) for each in partitions]},
            "group_deleted": {"generation_id": 1},
        }[kind]  # type: ignore[assignment]
        group_id = draw(st.sampled_from("gh"))
        lines.append(Line(3, seq, at_ms, 1, "n", group_id, 0, kind, "", json.dumps({"member_id": "m", **payload})))
    cuts = sorted(draw(st.lists(st.integers(0, len(lines)), max_size=3)))
    return [lines[a:b] for a, b in zip([0, *cuts], [*cuts, len(lines)], strict=True)]


@settings(max_examples=150, deadline=None)
@given(slices=histories())
def test_columns_and_lines_give_the_same_rows_at_any_cut(slices: list[list[Line]]) -> None:
    assert by_columns(slices) == by_lines([line for lines in slices for line in lines])


@pytest.mark.parametrize("seed", [1, 3, 5, 13])
def test_facts_need_no_commits_but_those_that_count(seed: int) -> None:
    """All tables but offsets are as they are when each commit is looked at, cut in two or not."""
    journal = ordered(simulated(seed))
    middle = max(line.seq for line in journal) // 3
    expected = all_but_offsets(journal, with_offsets=True)

    for slices in ([journal], [[x for x in journal if x.seq <= middle], [x for x in journal if x.seq > middle]]):
        reported = [line for lines in slices for line in telling(lines)]
        assert len(reported) < len(journal)
        assert all_but_offsets(reported, with_offsets=False) == expected


def telling(lines: list[Line]) -> list[Line]:
    """These lines without the commits that only say an offset."""
    others = [line for line in lines if line.kind != COMMITS]
    commits = [line for line in lines if line.kind == COMMITS]
    keeps = telling_commits(table_of(others), table_of(commits))
    return others + [line for line, keep in zip(commits, keeps, strict=True) if keep]


def all_but_offsets(lines: list[Line], *, with_offsets: bool) -> Counter[str]:
    rows: Counter[str] = Counter()
    folds: dict[str, GroupFold] = {}
    for line in ordered(lines):
        key = f"{line.shard_id} {line.namespace} {line.group_id}"
        if key not in folds:
            folds[key] = GroupFold(line.namespace, line.group_id, decoders=SIMULATED, with_offsets=with_offsets)
        rows.update(repr(row) for row in folds[key].add(line) if row.table != "offsets")
    rows.update(repr(row) for fold in folds.values() for row in fold.open_rows() if row.table != "offsets")
    return rows


def test_commits_that_end_in_a_table_of_all_facts_are_known() -> None:
    """A fact that looks at every commit would miss those that `telling_commits` leaves out."""
    assert {name for name, table in GOLD.items() if COMMITS in table.sources} == {"offsets", "group_states"}


def test_a_payload_that_cannot_be_read_leaves_the_others_typed() -> None:
    good = json.dumps({"member_id": "m", "offsets": [["t", 1, 7, None, ""], ["t", 2, 8, 3, "x", 5, 6]]})

    read = typed_offsets(pa.array([good, '{"offsets": 3}', good]))

    offsets = [{"topic": "t", "partition": 1, "offset": 7}, {"topic": "t", "partition": 2, "offset": 8}]
    assert read.to_pylist() == [offsets, None, offsets]


@pytest.mark.parametrize("offset", [2**53 - 1, 2**53, 1_795_372_229_057_000_000, 2**63 - 1])
def test_offsets_have_64_bits_from_the_journal_to_the_table(offset: int) -> None:
    def a_line(seq: int, at: int) -> Line:
        committed = OffsetsCommitted("m", (CommittedOffset("t", 0, at, None, ""), CommittedOffset("u", 0, 3, None, "")))
        payload = json.dumps(payload_of(committed))
        return Line(3, seq, 10 * HOUR_MS + seq, 1, "n", "g", 0, COMMITS, "", payload)

    lines = [a_line(1, 0), a_line(2, offset)]

    assert typed_offsets(pa.array([lines[1].payload])).to_pylist()[0][0] == {
        "topic": "t",
        "partition": 0,
        "offset": offset,
    }
    assert by_columns([lines]) == by_columns([lines[:1], lines[1:]]) == by_lines(lines)
    assert any(f", {offset}, 2, " in row for row in by_lines(lines)[1])


def test_a_commit_that_cannot_be_read_is_named() -> None:
    line = Line(3, 17, 1, 1, "n", "g", 0, COMMITS, "", '{"offsets": "none"}')

    with pytest.raises(ValueError, match="shard 3, line 17"):
        refuse_unreadable(table_of([line]))


def test_large_offsets_and_no_lines_are_folded() -> None:
    nothing = fold_offsets(table_of([]), Ends([], []), CURRENT_OFFSETS.schema.empty_table())
    far = Line(0, 1, 0, 1, "n", "g", 0, COMMITS, "", json.dumps({"offsets": [["t", 2**31 - 1, 2**63 - 1, None, ""]]}))

    closed, opened = by_columns([[far]])

    assert [len(each) for each in nothing] == [0, 0]
    assert (closed, opened) == by_lines([far])
