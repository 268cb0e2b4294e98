"""The facts about offsets, folded by columns: the rules of `Offsets` for millions of commits at once.

Entries are what `Offsets` would see one after the other: the open hours of the slice before, then commits and what
ends hours, in the order of the lines. They are sorted by partition; a run of one hour without an end between is a row.
`Offsets` folds line by line for the audit, which so compares two ways to the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rota.pipeline.facts.offsets import HOUR_MS
from rota.pipeline.tables import CURRENT_OFFSETS, OFFSETS

COMMIT_COLUMNS = ("shard_id", "seq", "at", "epoch", "namespace", "group_id", "generation_id", "offsets")
"""The columns that are read of the lines of commits."""


@dataclass(frozen=True, slots=True)
class Ends:
    """What ends hours, as lists of one length each: partitions with deleted offsets, and deleted groups."""

    partitions: list[tuple[str, str, int, str, int]]
    """(namespace, group id, seq, topic, partition)."""
    groups: list[tuple[str, str, int]]
    """(namespace, group id, seq)."""


def refuse_unreadable(commits: pa.Table) -> None:
    """Name the first commit whose payload could not be read when it was ingested."""
    if commits.column("offsets").null_count:
        line = commits.filter(pc.is_null(commits.column("offsets"))).slice(0, 1).to_pylist()[0]
        raise ValueError(f"shard {line['shard_id']}, line {line['seq']}: a commit's payload cannot be read")


def fold_offsets(commits: pa.Table, ends: Ends, opened: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows that are closed by these lines, and those that are open after them; `opened` are those before.

    `commits` has `COMMIT_COLUMNS`, with typed offsets; `opened` and the result have those of the tables.
    """
    entries = _Entries(commits, ends, opened)
    if not len(entries.seq):
        return OFFSETS.schema.empty_table(), opened
    return entries.folded()


class _Entries:
    """All entries as arrays, in no order."""

    def __init__(self, commits: pa.Table, ends: Ends, opened: pa.Table) -> None:
        lists = commits.column("offsets").combine_chunks()
        lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        values = lists.flatten()
        lines = np.repeat(np.arange(len(commits)), lengths)
        old, new, gone = len(opened), len(lines), len(ends.partitions)
        groups = _GroupCodes(commits, ends, opened)
        self.names = groups
        self.group = np.concatenate((groups.opened, groups.commits[lines], groups.partitions))
        self.topics = (
            pa.chunked_array(
                [
                    *opened.column("topic").chunks,
                    values.field("topic"),
                    pa.array([e[3] for e in ends.partitions], pa.string()),
                ]
            )
            .combine_chunks()
            .dictionary_encode()
        )
        topic = self.topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        ended = np.array([e[4] for e in ends.partitions], np.int64)
        self.partition = np.concatenate((_numbers(opened, "partition"), values.field("partition").to_numpy(), ended))
        seq = commits.column("seq").to_numpy()
        self.seq = np.concatenate((np.full(old, -1), seq[lines], np.array([e[2] for e in ends.partitions], np.int64)))
        at_ms = commits.column("at").cast(pa.int64()).to_numpy() // 1000
        nothing = np.zeros(gone, np.int64)
        offset, at_ms = values.field("offset").to_numpy(), at_ms[lines]
        hour_ms = at_ms - at_ms % HOUR_MS
        self.hour = np.concatenate((_ms(opened, "hour"), hour_ms, nothing))
        self.first = np.concatenate((_numbers(opened, "first_offset"), offset, nothing))
        self.first_ms = np.concatenate((_ms(opened, "first_at"), at_ms, nothing))
        self.last = np.concatenate((_numbers(opened, "last_offset"), offset, nothing))
        self.last_ms = np.concatenate((_ms(opened, "last_at"), at_ms, nothing))
        self.count = np.concatenate((_numbers(opened, "commits"), np.ones(new, np.int64), nothing))
        self.stall = np.concatenate((_numbers(opened, "stall_ms"), np.zeros(new, np.int64), nothing))
        self.back = np.concatenate((_numbers(opened, "went_back"), np.zeros(new, np.int64), nothing))
        self.is_end = np.concatenate((np.zeros(old + new, bool), np.ones(gone, bool)))
        # A group that is deleted ends the hours of all its partitions: its further commits are of another life.
        self.life, self.last_life = groups.lives(self.group, self.seq)
        self.key = _numbered(_numbered(self.group, topic), self.partition)
        self.topic = topic

    def folded(self) -> tuple[pa.Table, pa.Table]:
        order = np.lexsort((self.seq, self.key))
        key, life, hour, is_end = self.key[order], self.life[order], self.hour[order], self.is_end[order]
        last, last_ms = self.last[order], self.last_ms[order]
        new_key = np.ones(len(order), bool)
        new_key[1:] = key[1:] != key[:-1]
        anew = new_key | is_end
        anew[1:] |= (life[1:] != life[:-1]) | is_end[:-1]
        starts_here = anew.copy()
        starts_here[1:] |= hour[1:] != hour[:-1]
        stall, back = self.stall[order], self.back[order]
        goes_on = ~anew
        goes_on[0] = False
        later = np.flatnonzero(goes_on)
        stall[later] = np.maximum(stall[later], last_ms[later] - last_ms[later - 1])
        back[later] += last[later] < last[later - 1]
        starts = np.flatnonzero(starts_here)
        stops = np.append(starts[1:], len(order)) - 1
        is_last = np.append(new_key[1:], True)[stops]
        runs = ~is_end[starts]
        is_open = runs & is_last & (life[starts] == self.last_life[order][starts])
        first, first_ms = self.first[order], self.first_ms[order]
        found = {
            "entry": order[starts],
            "hour": hour[starts],
            "first_offset": first[starts],
            "last_offset": last[stops],
            "commits": np.add.reduceat(self.count[order], starts),
            "first_at": first_ms[starts],
            "last_at": last_ms[stops],
            "stall_ms": np.maximum(np.maximum.reduceat(stall, starts), 0),
            "went_back": np.add.reduceat(back, starts),
        }
        closed = {name: column[runs & ~is_open] for name, column in found.items()}
        opened = {name: column[is_open] for name, column in found.items()}
        return self._table(closed, OFFSETS.schema), self._table(opened, CURRENT_OFFSETS.schema)

    def _table(self, found: dict[str, Any], schema: pa.Schema) -> pa.Table:
        entry = found.pop("entry")
        took_ms = np.maximum(found["last_at"] - found["first_at"], 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = (found["last_offset"] - found["first_offset"]).astype(float) * 1000 / took_ms
        columns: dict[str, Any] = {name: pa.array(column, pa.int64()) for name, column in found.items()}
        columns |= {
            name: pa.array(found[name] * 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
            for name in ("hour", "first_at", "last_at")
        }
        columns |= self.names.columns(self.group[entry])
        columns["topic"] = self.topics.dictionary.take(pa.array(self.topic[entry]))
        columns["partition"] = pa.array(self.partition[entry], pa.int32())
        columns["rate_per_s"] = pa.array(rate, pa.float64(), mask=took_ms == 0)
        return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


class _GroupCodes:
    """A number for each group, the same in all that is folded together."""

    def __init__(self, commits: pa.Table, ends: Ends, opened: pa.Table) -> None:
        names = [(namespace, group_id) for namespace, group_id, *_ in (*ends.partitions, *ends.groups)]
        ended = [pa.array([name[n] for name in names], pa.string()) for n in (0, 1)]
        encoded = [
            pa.chunked_array([*opened.column(name).chunks, *commits.column(name).chunks, ended[n]], pa.string())
            .combine_chunks()
            .dictionary_encode()
            for n, name in enumerate(("namespace", "group_id"))
        ]
        codes = [each.indices.to_numpy(zero_copy_only=False).astype(np.int64) for each in encoded]
        both = codes[0] * max(1, len(encoded[1].dictionary)) + codes[1]
        self._unique, places, all_codes = np.unique(both, return_index=True, return_inverse=True)
        self._namespaces = encoded[0].dictionary.take(pa.array(codes[0][places]))
        self._group_ids = encoded[1].dictionary.take(pa.array(codes[1][places]))
        shards = [*_chunks(opened, "shard_id"), *_chunks(commits, "shard_id"), np.full(len(names), -1)]
        self._shards = np.concatenate(shards)[places]
        cuts = np.cumsum([len(opened), len(commits), len(ends.partitions)])
        self.opened, self.commits, self.partitions, deleted = np.split(all_codes, cuts)
        seqs = np.array([seq for _, _, seq in ends.groups], np.int64)
        self._wide = int(seqs.max(initial=0)) + 2
        self._deaths = np.sort(deleted * self._wide + seqs)

    def lives(self, group: Any, seq: Any) -> tuple[Any, Any]:
        """How often the group of each entry had been deleted before it, and is deleted in all."""
        born = np.searchsorted(self._deaths, group * self._wide)
        before = np.searchsorted(self._deaths, group * self._wide + np.minimum(np.maximum(seq, 0), self._wide - 1))
        return before - born, np.searchsorted(self._deaths, (group + 1) * self._wide) - born

    def columns(self, groups: Any) -> dict[str, pa.Array]:
        at = pa.array(groups)
        return {
            "namespace": self._namespaces.take(at),
            "group_id": self._group_ids.take(at),
            "shard_id": pa.array(self._shards[groups], pa.int32()),
        }


def telling_commits(others: pa.Table, commits: pa.Table) -> Any:
    """Which commits say more than an offset: the first of a group's life, and the first line of another epoch.

    All facts but those about offsets need no others of them. Returns a mask over `commits`.
    """
    if not len(commits):
        return np.array([], bool)
    both = pa.concat_tables(
        [each.select(["shard_id", "seq", "epoch", "namespace", "group_id"]) for each in (others, commits)]
    )
    kinds = others.column("kind").to_pylist()
    deletes = np.array([*(kind == "group_deleted" for kind in kinds), *([False] * len(commits))])
    is_commit = np.arange(len(both)) >= len(others)
    codes = [
        both.column(name).combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
        for name in ("namespace", "group_id")
    ]
    group = codes[0] * (codes[1].max(initial=0) + 1) + codes[1]
    order = np.lexsort((both.column("seq").to_numpy(), group))
    group, is_commit, epoch = group[order], is_commit[order], both.column("epoch").to_numpy()[order]
    new_group = np.ones(len(order), bool)
    new_group[1:] = group[1:] != group[:-1]
    other_epoch = new_group.copy()
    other_epoch[1:] |= epoch[1:] != epoch[:-1]
    life = np.cumsum(new_group | deletes[order])
    commits_here = np.flatnonzero(is_commit)
    first_of_life = np.zeros(len(order), bool)
    first_of_life[commits_here[np.unique(life[commits_here], return_index=True)[1]]] = True
    telling = np.zeros(len(both), bool)
    telling[order] = is_commit & (first_of_life | other_epoch)
    return telling[len(others) :]


def _numbered(one: Any, other: Any) -> Any:
    """A number for each pair of numbers from 0."""
    width = int(other.max(initial=0)) + 1
    if int(one.max(initial=0)) + 1 > 2**62 // width:
        one = np.unique(one, return_inverse=True)[1]
        other = np.unique(other, return_inverse=True)[1]
        width = int(other.max(initial=0)) + 1
    return one * width + other


def _chunks(table: pa.Table, name: str) -> list[Any]:
    return [each.to_numpy(zero_copy_only=False) for each in table.column(name).chunks]


def _numbers(table: pa.Table, name: str) -> Any:
    return table.column(name).to_numpy().astype(np.int64)


def _ms(table: pa.Table, name: str) -> Any:
    return table.column(name).cast(pa.int64()).to_numpy() // 1000
