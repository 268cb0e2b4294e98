"""The parser of large documents, which other threads can interrupt, reads what the quick one reads."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.protocol.errors import RejectedRequest
from rota.wire.documents import parse_document, parse_large_document

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
TEXTS = VALUES.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40)
HOSTILE = (b"[" * 100_000, b'{"a":' * 100_000, b'{"a": ' + b"9" * 5_000 + b"}", b'{"a": NaN}', b"", b"{}", b"\xff")


def outcome(parse: object, body: bytes) -> object:
    try:
        return parse(body)  # type: ignore[operator]
    except RejectedRequest as rejected:
        return rejected.code, rejected.detail


@settings(max_examples=60, derandomize=True, deadline=None)
@given(body=TEXTS)
def test_both_parsers_read_the_same(body: bytes) -> None:
    assert outcome(parse_large_document, body) == outcome(parse_document, body)


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
def test_both_parsers_refuse_the_same(body: bytes) -> None:
    assert outcome(parse_large_document, body) == outcome(parse_document, body)
