"""Thousands of lines in one row of a query: each row, and each field of it, costs Postgres and its driver alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rota.pipeline.events import EVENTS
from rota.pipeline.failures import JournalRefused
from rota.pipeline.journal import Wanted
from rota.pipeline.positions import Span
from rota.pipeline.queries import condition, schema_of

_ROW_LINES = 32_768
"""Of spans, at most. With fewer, Postgres looks for lines more often, and visits a page in several rows."""

_PARTIAL_ROW_LINES = 131_072
"""The same where only some of the lines are wanted: looking for them is most of the cost."""

_LONG_BYTES = 2_048
"""A payload of more stays out of a row, which Postgres holds four times while it sends it, and refuses above 1 GB."""

_LONG_LINES = 10_000
"""In one query. It names each of them."""

_BITS = {
    "shard_id": 31,
    "seq": 63,
    "namespace": 10,
    "group_id": 10,
    "kind": 8,
    "payload": 30,
    "reason": 30,
    "epoch": 31,
    "generation_id": 32,
    "at": 64,
}
"""Of each column, or of a text's length: a name has 249 bytes at most, and any text less than 1 GB. The columns share
numbers in this order. Postgres refuses an epoch that does not fit."""

_MOST_BITS = 63
_TEXTS = {field.name for field in EVENTS if pa.types.is_string(field.type)}

_YEAR_2000_US = 946_684_800_000_000
"""From which Postgres counts the microseconds of a time, after 1970."""


class PackedLines:
    """Selects the lines of spans, a column of some thousand lines in one field, and makes batches of them.

    Numbers are bytes, 8 for each line: columns share one where they fit, and so do the lengths of texts.
    Texts follow one another without anything between them. Lines with long payloads are queried one by one afterwards.
    """

    def __init__(self, spans: Sequence[Span], wanted: Wanted) -> None:
        self._spans = spans
        self._row_lines = _PARTIAL_ROW_LINES if wanted.is_partial else _ROW_LINES
        self._long: list[tuple[int, int]] = []
        self._schema = schema = schema_of(wanted)
        seq_bits = max(span.last for span in spans).bit_length()
        shard_bits = max(span.shard_id for span in spans).bit_length()
        self._bits = {**_BITS, "shard_id": shard_bits, "seq": seq_bits}
        self._numbers: list[list[str]] = [[]]
        for name in (name for name in self._bits if name in schema.names):
            if sum(self._bits[each] for each in (*self._numbers[-1], name)) > _MOST_BITS:
                self._numbers.append([])
            self._numbers[-1].append(name)
        self._condition, values = condition(wanted, "literal")
        assert not values
        self._texts = [name for name in schema.names if name in _TEXTS]

    @property
    def query(self) -> str:
        """A SELECT whose rows `unpacked` takes."""
        rows = -(-sum(span.lines for span in self._spans) // self._row_lines)
        # All spans at once: a page holds lines of many shards, and is read once.
        spans = " OR ".join(
            f"(shard_id = {s.shard_id} AND seq >= {s.first} + part * {s.lines} / {rows}"
            f" AND seq < {s.first} + (part + 1) * {s.lines} / {rows})"
            for s in self._spans
        )
        columns = [f"string_agg({self._sent(names)}, CAST(NULL AS BYTEA)) AS {names[0]}_" for names in self._numbers]
        columns += [f"string_agg({_short(name)}, NULL) AS {name}" for name in self._texts]
        lines = f"SELECT {', '.join(columns)} FROM rota.group_events WHERE ({spans}){self._condition}"
        return f"SELECT packed.* FROM generate_series(BIGINT '0', {rows - 1}) AS part, LATERAL ({lines}) AS packed"

    @property
    def queries_of_long(self) -> Iterator[str]:
        """SELECTs of the lines that `unpacked` has left out, once it has seen all rows; `as_they_are` takes theirs."""
        for start in range(0, len(self._long), _LONG_LINES):
            places = zip(*self._long[start : start + _LONG_LINES], strict=True)
            arrays = ", ".join(f"CAST('{{{','.join(map(str, numbers))}}}' AS BIGINT[])" for numbers in places)
            yield (
                f"SELECT {', '.join(self._schema.names)} FROM unnest({arrays}) AS long (shard_id, seq) "
                "JOIN rota.group_events USING (shard_id, seq)"
            )

    def as_they_are(self, lines: pa.RecordBatch) -> pa.RecordBatch:
        """Lines that were sent one by one, in the columns of the schema."""
        return pa.RecordBatch.from_arrays(
            [lines.column(field.name).cast(field.type) for field in self._schema], schema=self._schema
        )

    def unpacked(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The lines of each row in the columns of the schema."""
        for row in range(rows.num_rows):
            if rows.column("shard_id_")[row].is_valid:
                yield self._lines({name: rows.column(name)[row].as_buffer() for name in rows.schema.names})

    def _sent(self, names: Sequence[str]) -> str:
        """The bytes of a number that holds these columns, or the lengths of texts, the first of them on top."""
        if names == ["at"]:
            return "timestamptz_send(at)"
        number = _number(names[0])
        for name in names[1:]:
            number = f"({number}) * BIGINT '{1 << self._bits[name]}' + {_number(name)}"
        return f"int8send({number})"

    def _lines(self, row: dict[str, pa.Buffer]) -> pa.RecordBatch:
        found: dict[str, Any] = {}
        for names in self._numbers:
            rest = np.frombuffer(row[f"{names[0]}_"], ">i8").astype(np.int64)
            for name in reversed(names[1:]):
                lower = rest & ((1 << self._bits[name]) - 1)
                if name == "generation_id":
                    lower = lower.astype(np.int32)  # which gives its sign back
                found[name], rest = lower, (rest - lower) >> self._bits[name]
            found[names[0]] = rest
        if "at" in found:
            found["at"] += _YEAR_2000_US
        is_long = self._note_long(found)
        columns = [
            _texts(found[field.name], row[field.name])
            if field.name in _TEXTS
            else pa.array(found[field.name]).cast(field.type)
            for field in self._schema
        ]
        lines = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return lines if is_long is None else lines.filter(pa.array(~is_long))

    def _note_long(self, found: dict[str, Any]) -> Any:
        """Which of the lines have a long payload, an array of flags, or None where none has. Their lengths become 0."""
        is_long = found["payload"] > _LONG_BYTES if "payload" in found else None
        if is_long is None or not is_long.any():
            return None
        self._long += zip(found["shard_id"][is_long].tolist(), found["seq"][is_long].tolist(), strict=True)
        found["payload"] = np.where(is_long, 0, found["payload"])
        return is_long


def _number(name: str) -> str:
    return f"octet_length({name})" if name in _TEXTS else name


def _short(name: str) -> str:
    """The SQL of a text as it is sent: a long payload is left out."""
    return f"CASE WHEN octet_length(payload) <= {_LONG_BYTES} THEN payload END" if name == "payload" else name


def _texts(lengths: Any, all_of_them: pa.Buffer) -> pa.Array:
    """The column of texts that follow one another."""
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    if ends[-1] != all_of_them.size:
        raise JournalRefused("the encoding of the journal's database is not UTF-8")
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(ends), all_of_them)
