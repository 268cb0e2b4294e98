"""Two numbers of a line in one field of a query: each field costs Postgres's driver more than taking them apart."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from rota.pipeline.positions import Span

_GENERATION_BITS = 32
"""The column is an INTEGER, which may be negative. Postgres refuses an epoch that does not fit above it."""


class PackedNumbers:
    """Selects `shard_id` and `seq` as one number, and `epoch` and `generation_id` where both are wanted."""

    def __init__(self, spans: Sequence[Span], schema: pa.Schema) -> None:
        """`schema`: the columns that are wanted, with `shard_id` and `seq`."""
        self._schema = schema
        bits = max(span.last for span in spans).bit_length()
        pairs = (("shard_id", "seq", bits), ("epoch", "generation_id", _GENERATION_BITS))
        self._pairs = [pair for pair in pairs if {*pair[:2]} <= {*schema.names}]
        in_pairs = {name for pair in self._pairs for name in pair[:2]}
        self._alone = [name for name in schema.names if name not in in_pairs]

    @property
    def selected(self) -> str:
        """What to SELECT for batches that `unpacked` takes."""
        packed = [f"{high} * BIGINT '{1 << bits}' + {low} AS {high}" for high, low, bits in self._pairs]
        return ", ".join((*packed, *self._alone))

    def unpacked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same lines in the columns of the schema."""
        columns = {name: batch.column(name) for name in self._alone}
        for high, low, bits in self._pairs:
            both = batch.column(high).to_numpy()
            lower = both & ((1 << bits) - 1)
            if low == "generation_id":
                lower = lower.astype("int32")  # which gives its sign back
            columns[high], columns[low] = pa.array((both - lower) >> bits), pa.array(lower)
        return pa.RecordBatch.from_arrays(
            [columns[field.name].cast(field.type) for field in self._schema], schema=self._schema
        )
