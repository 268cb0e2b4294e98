"""Offsets read from the text of commits: what a JSON reader finds in the same lines, whatever they are."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rota.group.journal import encode_entry
from rota.group.records import CommittedOffset, Entry, OffsetsCommitted
from rota.pipeline.commit_text import offsets_by_template
from rota.pipeline.committed import typed_offsets
from rota.pipeline.tables import OFFSET_LISTS
from tests.unit.assignors.worlds import deterministic

dump = json.JSONEncoder(ensure_ascii=False).encode
texts = st.text(st.sampled_from("ab-é\u2028😀 ,:[]{}1"), max_size=9)
odd_texts = st.text(st.sampled_from('a"\\\n\x7f'), max_size=3)
numbers = st.integers(0, 9) | st.integers(0, 10**9) | st.integers(0, 10**15 - 1)
offsets = st.builds(
    CommittedOffset,
    texts,
    st.integers(0, 2**31 - 1) | st.integers(0, 20),
    numbers,
    st.none() | st.integers(0, 10**6),
    texts,
    st.none(),
    st.none(),
)
odd_offsets = st.builds(
    CommittedOffset, odd_texts, st.just(1), numbers, st.none(), odd_texts, st.none() | numbers, st.none() | numbers
)
commits = st.lists(offsets, min_size=1, max_size=4)
any_commits = st.lists(offsets | odd_offsets, max_size=3)


def payload(offsets: list[CommittedOffset]) -> str:
    """As a server writes it."""
    entry = Entry("default", "g", 1, 0, OffsetsCommitted("m-1", tuple(offsets)))
    return dump(encode_entry(entry)["payload"])


def read(text: str) -> list[dict[str, Any]] | None:
    """What a JSON reader says; None where it is no commit."""
    try:
        found = json.loads(text)["offsets"]
        rows = [{"topic": topic, "partition": n, "offset": _number(offset)} for topic, n, offset, *_ in found]
        return pa.array([rows], OFFSET_LISTS).to_pylist()[0] if all(map(_is_typed, rows)) else None
    except (KeyError, TypeError, ValueError):
        return None


def _number(offset: Any) -> Any:
    """Above 2^53 - 1 an offset is a string."""
    return int(offset) if isinstance(offset, str) else offset


def _is_typed(row: dict[str, Any]) -> bool:
    return isinstance(row["topic"], str) and type(row["partition"]) is type(row["offset"]) is int


@deterministic
@given(st.lists(commits, min_size=1, max_size=6))
def test_commits_as_servers_write_them_are_read_by_template(written: list[list[CommittedOffset]]) -> None:
    payloads = [payload(offsets) for offsets in written]

    found, fits = offsets_by_template(pa.array(payloads))

    assert fits.all()
    assert found is not None
    assert found.to_pylist() == [read(text) for text in payloads]


@deterministic
@given(st.lists(any_commits, max_size=6))
def test_commits_with_anything_odd_are_read_all_the_same(written: list[list[CommittedOffset]]) -> None:
    payloads = [payload(offsets) for offsets in written]

    assert typed_offsets(pa.array(["", *payloads], pa.string()).slice(1)).to_pylist() == [
        read(text) for text in payloads
    ]


@deterministic
@given(st.lists(commits, min_size=1, max_size=3), st.data())
def test_a_line_that_was_changed_is_read_as_json_or_not_at_all(
    written: list[list[CommittedOffset]], data: st.DataObject
) -> None:
    payloads = [payload(offsets) for offsets in written]
    line = data.draw(st.integers(0, len(payloads) - 1))
    at = data.draw(st.integers(0, len(payloads[line]) - 1))
    other = data.draw(
        st.sampled_from(["", "0", "9", '"', " ", ",", "-", "]", "[", "}", "\\", "\t", "null", "00", "1e3"])
    )
    payloads[line] = payloads[line][:at] + other + payloads[line][at + data.draw(st.integers(0, 3)) :]

    assert typed_offsets(pa.array(payloads)).to_pylist() == [read(text) for text in payloads]


def test_long_numbers_are_whole() -> None:
    offsets = [CommittedOffset("t", 2**31 - 1, 10**n, 10**9, "") for n in (7, 8, 9, 14, 15, 16, 17, 18)]

    assert typed_offsets(pa.array([payload(offsets)])).to_pylist() == [read(payload(offsets))]
