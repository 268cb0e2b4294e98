"""Committed offsets as columns: read from the payloads once, where the lines are ingested."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from rota.pipeline.commit_text import offsets_by_template
from rota.pipeline.tables import OFFSET_LISTS

COMMITS = "offsets_committed"
"""The kind that most lines are of."""

_BYTES = 640 * 1024
"""About so much text is read at once, some thousand lines: it stays in the processor's caches."""


def typed_offsets(payloads: pa.StringArray) -> pa.ListArray:
    """What the payloads of commits say, line by line; null where a payload cannot be read."""
    lines = max(1, _BYTES * len(payloads) // max(1, payloads.nbytes))
    parts = [_read(payloads.slice(n, lines)) for n in range(0, len(payloads), lines)]
    return pa.concat_arrays(parts) if parts else pa.array([], OFFSET_LISTS)


def _read(payloads: pa.StringArray) -> pa.ListArray:
    """Those that are as servers write nearly all of them in one pass, the others with objects for each."""
    found, fits = offsets_by_template(payloads)
    if found is not None:
        return found
    if not fits.any():
        return _typed(payloads.to_pylist())
    parts = [_read(payloads.filter(pa.array(fits))), _typed(payloads.filter(pa.array(~fits)).to_pylist())]
    order = np.argsort(np.concatenate([np.flatnonzero(fits), np.flatnonzero(~fits)]))
    return pa.concat_arrays(parts).take(pa.array(order))


def _typed(payloads: Sequence[str]) -> pa.Array:
    decode = _decoder()
    try:
        return _as_lists([decode(payload).offsets for payload in payloads])
    except _errors():
        return _one_by_one(payloads)


def _one_by_one(payloads: Sequence[str]) -> pa.Array:
    """The same where one of them cannot be read: the fold, which needs it, says which line it is."""
    decode, lists, unread = _decoder(), [], []
    for payload in payloads:
        try:
            lists.append(decode(payload).offsets)
            unread.append(False)
        except _errors():
            lists.append([])
            unread.append(True)
    return _as_lists(lists, pa.array(unread))


def _as_lists(lists: Sequence[Sequence[Any]], unread: pa.Array | None = None) -> pa.Array:
    ends = np.zeros(len(lists) + 1, np.int32)
    np.cumsum([len(each) for each in lists], out=ends[1:])
    offsets = list(chain.from_iterable(lists))
    fields = [
        pa.array([each.topic for each in offsets], pa.string()),
        pa.array([each.partition for each in offsets], pa.int32()),
        pa.array([each.offset for each in offsets], pa.int64()),
    ]
    values = pa.StructArray.from_arrays(fields, fields=list(OFFSET_LISTS.value_type))
    return pa.ListArray.from_arrays(pa.array(ends), values, mask=unread)


@cache
def _decoder() -> Any:
    """Reads what the fold needs of a commit, and skips all else. msgspec takes a quarter of the time of JSON readers
    that make dictionaries.
    """
    import msgspec

    offset = msgspec.defstruct(
        "Offset", [("topic", str), ("partition", int), ("offset", int)], array_like=True, gc=False
    )
    commit = msgspec.defstruct("Commit", [("offsets", list[offset])], gc=False)  # type: ignore[valid-type]
    # Not strict: an offset above 2^53 - 1 is a string.
    return msgspec.json.Decoder(commit, strict=False).decode


def _errors() -> type[Exception]:
    import msgspec

    return msgspec.MsgspecError
