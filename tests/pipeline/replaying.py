"""Lines of a journal at hand, folded, audited and replayed without tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter

import pyarrow as pa

from rota.pipeline.advisor import GroupReplay, replay_lines
from rota.pipeline.facts.fact import Row
from rota.pipeline.facts.units import Decoders
from rota.pipeline.fold import GroupFold, Key
from rota.pipeline.invariants import EpochSpan, Finding, GroupAudit, epochs_mixed
from rota.pipeline.tables import FOLDED, LINES, Line
from rota.pipeline.what_ifs import Known
from tests.pipeline.journals import ordered


def fold_lines(
    lines: Iterable[Line], decoders: Decoders | None = None
) -> Iterator[tuple[Key, GroupFold, Iterator[Row]]]:
    """Fold the lines of many groups, which come group by group and ordered by number.

    Yields each group with its rows, which must be used up before the next group; then the fold has taken in all.
    """
    for key, of_group in groupby(lines, key=lambda line: (line.shard_id, line.namespace, line.group_id)):
        fold = GroupFold(key[1], key[2], decoders=decoders)
        yield key, fold, chain.from_iterable(map(fold.add, of_group))


def findings_of(lines: Sequence[Line], *, whole: bool = True) -> Iterator[Finding]:
    """The broken rules of these lines, which come group by group and ordered by number."""
    for key, of_group in groupby(lines, key=lambda line: (line.shard_id, line.namespace, line.group_id)):
        audit = GroupAudit(key[0], whole=whole)
        for line in of_group:
            for check, text in audit.add(line):
                yield Finding(check, *key, line.seq, text)
    yield from epochs_mixed(_epoch_spans(lines))


def _epoch_spans(lines: Iterable[Line]) -> Iterator[EpochSpan]:
    in_order = sorted(lines, key=attrgetter("shard_id", "epoch", "seq"))
    for (shard_id, epoch), of_epoch in groupby(in_order, key=attrgetter("shard_id", "epoch")):
        its_lines = list(of_epoch)
        first, last = its_lines[0], its_lines[-1]
        yield EpochSpan(shard_id, epoch, first.seq, first.namespace, first.group_id, last.seq)


def replays(
    lines: Iterable[Line],
    strategies: Sequence[str],
    decoders: Decoders | None = None,
    known: Mapping[tuple[str, str], Known] | None = None,
) -> Iterator[Row]:
    """The rows of `advisor` and `what_ifs` for these lines, which come group by group and ordered by number."""
    for (_, namespace, group_id), of_group in groupby(lines, key=attrgetter("shard_id", "namespace", "group_id")):
        silences = (known or {}).get((namespace, group_id))
        yield from replay_lines(GroupReplay(namespace, group_id, strategies, decoders, silences), of_group)


def closed_rows(lines: Sequence[Line], decoders: Decoders | None = None) -> dict[str, Counter[str]]:
    """The complete rows that one pass over a journal gives, by table."""
    rows: dict[str, Counter[str]] = {table: Counter() for table in FOLDED}
    for _, _, found in fold_lines(ordered(lines), decoders):
        for each in found:
            rows[each.table][repr(each.values)] += 1
    return rows


def table_of(lines: Iterable[Line]) -> pa.Table:
    """Lines as Spark gives them to a fold."""
    columns = list(zip(*lines, strict=True))
    arrays = [
        pa.array([at_ms * 1000 for at_ms in column] if field.name == "at" else column, field.type)
        for column, field in zip(columns, LINES, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=LINES)
