"""Harvesting what changed of a group: the rows that go into the transaction of their records."""

from __future__ import annotations

from rota.group.rows import GroupRow, RowChanges
from rota.group.state import DEAD, Group


def group_rows(group: Group, changes: RowChanges) -> None:
    """Collect the rows of a group that no longer say what the facts say."""
    if group.dirty and group.settled is not None:
        changes.groups.append(group.settled)
    for member_id in group.dirty_members:
        member = group.members.get(member_id)
        if member is None:
            changes.members_deleted.append((group.namespace, group.group_id, member_id))
        elif member.settled is not None:
            changes.members.append(group.member_row(member))
    for key in group.dirty_offsets:
        row = group.offsets.get(key)
        if row is None:
            changes.offsets_deleted.append((group.namespace, group.group_id, *key))
        else:
            changes.offsets.append(row)
    group.dirty = False
    group.dirty_members.clear()
    group.dirty_offsets.clear()


def tombstone_row(key: tuple[str, str], generation_id: int) -> GroupRow:
    """What stays of a deleted group: its generation."""
    return GroupRow(*key, DEAD.value, generation_id, generation_id, None, None, None, 0, "", "")
