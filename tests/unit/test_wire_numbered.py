"""Things that a connection carries again and again travel as numbers; both ends forget them at once."""

from __future__ import annotations

from random import Random

import pytest

from rota.wire import numbered
from rota.wire.envelopes import MalformedEnvelope
from rota.wire.numbered import NumberedReader, NumberedWriter


def test_a_thing_is_written_once() -> None:
    writer = NumberedWriter(str.encode)
    first, again = writer.pack(["a thing", "another"]), writer.pack(["another", "a thing", "another"])

    assert b"a thing" in first
    assert b"a thing" not in again


def test_what_was_written_is_read_also_when_tables_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbered, "MOST", 20)
    random, words = Random(1), [f"word {number}" for number in range(40)]
    writer, reader = NumberedWriter(str.encode), NumberedReader(bytes.decode)
    for _ in range(200):
        some = random.choices(words, k=random.randrange(8))

        assert reader.unpack(writer.pack(some)) == some


def test_a_table_begins_anew_when_its_lines_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbered, "MOST_BYTES", 10)
    writer, word = NumberedWriter(str.encode), "more than ten bytes"

    assert word.encode() in writer.pack([word])
    assert word.encode() in writer.pack([word])


def test_equal_things_that_are_others_have_their_own_numbers() -> None:
    writer, reader = NumberedWriter(str.encode), NumberedReader(bytes.decode)
    word, equal = "a word", "".join(["a ", "word"])

    assert reader.unpack(writer.pack([word, equal])) == [word, equal]


@pytest.mark.parametrize(
    "data", [b"", b"\0\2\0\0\0", b"\0\1\0\0\0\0\0\0\0", b"\1\1\0\0\0\1\0\0\0a line", b"\0\xff\xff\xff\xff"]
)
def test_what_no_writer_sends_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedEnvelope):
        NumberedReader(bytes.decode).unpack(data)
