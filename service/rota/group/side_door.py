"""Taking in what users' own transactions committed in the store, past the shard's owner (protocol.md §3, ADR 0015)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rota.group.records import CommittedOffset, OffsetsCommitted
from rota.group.result import Result
from rota.group.rows import OffsetRow, SideCommit
from rota.group.state import Group


def take_in(result: Result, groups: Mapping[tuple[str, str], Group], commits: Sequence[SideCommit]) -> None:
    """Record the offsets as they stand in the store: there, the order of transactions has decided which came last.

    What memory is about to write comes after all of them, so it stays. A group that is not there any more takes its
    offsets with it.
    """
    last: dict[tuple[str, str, str, int], SideCommit] = {}
    for commit in commits:
        last[(commit.namespace, commit.group_id, commit.topic, commit.partition)] = commit
    found: dict[tuple[str, str, str], list[OffsetRow]] = {}
    for commit in last.values():
        group = groups.get((commit.namespace, commit.group_id))
        if group is None or commit.row is None or (commit.topic, commit.partition) in group.dirty_offsets:
            continue
        found.setdefault((commit.namespace, commit.group_id, commit.member_id), []).append(commit.row)
    for (namespace, group_id, member_id), rows in found.items():
        _record(result, groups[(namespace, group_id)], member_id, rows)


def _record(result: Result, group: Group, member_id: str, rows: list[OffsetRow]) -> None:
    offsets = tuple(
        CommittedOffset(row.topic, row.partition, row.offset, row.leader_epoch, row.metadata, row.committed_at_ms)
        for row in rows
    )
    result.record(group, OffsetsCommitted(member_id, offsets, "in a transaction of the user's"))
    for row in rows:
        # The store has it already, and may have a later one by now, which must not be overwritten.
        del group.dirty_offsets[(row.topic, row.partition)]
