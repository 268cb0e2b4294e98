"""What a shard knows: its groups and topics, folded from rows or journal lines, and which rows have to follow.

Nothing is decided here. A reader that only follows a journal, as `rota db verify` does, needs no more than this.
"""

from __future__ import annotations

from email.utils import formatdate

from rota.core.group.records import Administered, Entry, GroupDeleted, ShardAcquired, ShardReleased, TopicChanged
from rota.core.group.rows import GroupRow, RowChanges, ShardImage, SideCommit, TopicRow
from rota.core.group.state import DEAD, STABLE, Group, GroupState, Result, apply


class ShardState:
    """All groups and topics of one slice, in memory."""

    def __init__(self, shard_id: int) -> None:
        self.shard_id = shard_id
        self.groups: dict[tuple[str, str], Group] = {}
        self.tombstones: dict[tuple[str, str], GroupRow] = {}
        """What stays of deleted groups, by (namespace, group_id): the last generation, when the group was deleted
        (`state_since_ms`), and why (`rebalance_reason`)."""
        self.topics: dict[tuple[str, str], TopicRow] = {}
        """Registered topics, and the tombstones of those that were deleted (here or in another shard)."""
        self._dirty_groups: dict[tuple[str, str], None] = {}
        self._removed: list[Group] = []
        self.last_topics: dict[str, TopicRow] = {}
        """By namespace, the topic that was put or deleted last: its revision counts the changes of all."""
        self._dirty_topics: dict[tuple[str, str], None] = {}
        self._taken_in: dict[int, SideCommit] = {}

    def last_generation(self, key: tuple[str, str]) -> int:
        """The last generation of the deleted group with this key; 0 if there was none."""
        former = self.tombstones.get(key)
        return former.generation_id if former is not None else 0

    # --- folding ------------------------------------------------------------------------------

    def fill(self, image: ShardImage) -> None:
        """Take over all rows of the store, into a state that is empty."""
        for row in image.groups:
            self._fill_group(row)
        for member_row in sorted(image.members, key=lambda row: row.position):
            group = self.groups[(member_row.namespace, member_row.group_id)]
            group.next_position = member_row.position
            member = group.admit(member_row.image)
            member.settled = member_row.image
            member.assignment = member_row.assignment
            member.takeover = member_row.takeover
        for offset in image.offsets:
            # A user's transaction may have left one behind while its group was being deleted.
            owner = self.groups.get((offset.namespace, offset.group_id))
            if owner is not None:
                owner.offsets[(offset.topic, offset.partition)] = offset
        for topic in image.topics:
            self._keep_topic(topic)
        for group in self.groups.values():
            if group.settled is not None:
                group.resume_leader(group.settled)

    def replay(self, entry: Entry) -> None:
        """Fold one line of the journal, as the live shard did when it decided it."""
        record = entry.record
        if isinstance(record, ShardAcquired):
            self.forget_unsettled()
        elif isinstance(record, TopicChanged):
            self._apply_topic(entry.namespace, record)
        elif isinstance(record, GroupDeleted):
            self._remove(self.groups[(entry.namespace, entry.group_id)], record, entry.at_ms)
        elif not isinstance(record, ShardReleased | Administered):
            apply(self._adopt(entry.namespace, entry.group_id), record, entry.at_ms)
            self._dirty_groups[(entry.namespace, entry.group_id)] = None

    def forget_unsettled(self) -> None:
        """Fall back to what the store knows, as a new owner does: join phases under way never were."""
        for group in list(self.groups.values()):
            if group.settled is None:
                del self.groups[group.key]
            else:
                group.forget_unsettled()

    # --- rows ---------------------------------------------------------------------------------

    def rows(self) -> RowChanges:
        """The rows that changed since this was last asked: they go into the transaction of their records."""
        changes = RowChanges()
        for group in self._removed:
            group.dirty = False
            _group_rows(group, changes)
        for key in self._dirty_groups:
            live = self.groups.get(key)
            if live is not None:
                _group_rows(live, changes)
            if key in self.tombstones and (live is None or live.settled is None):
                changes.groups.append(self.tombstones[key])
        self._removed.clear()
        for commit in self._taken_in.values():
            changes.side_commits_taken.append(commit.side_id)
            if (commit.namespace, commit.group_id) not in self.groups:
                changes.offsets_deleted.append((commit.namespace, commit.group_id, commit.topic, commit.partition))
        self._taken_in.clear()
        for key in self._dirty_topics:
            changes.topics.append(self.topics[key])
        self._dirty_groups.clear()
        self._dirty_topics.clear()
        return changes

    def image(self, last_seq: int = 0) -> ShardImage:
        """All rows that the store should hold for this shard."""
        known = [group for group in self.groups.values() if group.settled is not None]
        alive = {group.key for group in known}
        tombstones = [row for key, row in self.tombstones.items() if key not in alive]
        return ShardImage(
            shard_id=self.shard_id,
            last_seq=last_seq,
            groups=tuple([group.settled for group in known if group.settled is not None] + tombstones),
            members=tuple(g.member_row(m) for g in known for m in g.members.values() if m.settled is not None),
            offsets=tuple(row for group in known for row in group.offsets.values()),
            topics=tuple(self.topics.values()),
        )

    # --- inside -------------------------------------------------------------------------------

    def _remove(self, group: Group, record: GroupDeleted, at_ms: int) -> None:
        self._removed.append(self.groups.pop(group.key))
        # A group that only ever had offsets has no reason.
        last = f"; no members since {http_date(group.state_since_ms)}: {group.rebalance_reason}"
        reason = f"{record.reason}{last if group.rebalance_reason else ''}"
        generation_id = record.generation_id
        self.tombstones[group.key] = GroupRow(
            *group.key, DEAD.value, generation_id, generation_id, None, None, None, at_ms, reason, ""
        )
        self._dirty_groups[group.key] = None

    def _apply_topic(self, namespace: str, record: TopicChanged) -> None:
        key = (namespace, record.topic)
        former = self.topics.get(key)
        topic_id = former.topic_id if former is not None else 0
        if not record.partitions:
            topic_id = record.revision
        self._keep_topic(
            TopicRow(namespace, record.topic, record.partitions, record.attributes, record.revision, topic_id)
        )
        self._dirty_topics[key] = None

    def _keep_topic(self, topic: TopicRow) -> None:
        self.topics[(topic.namespace, topic.topic)] = topic
        last = self.last_topics.get(topic.namespace)
        if last is None or topic.revision >= last.revision:
            self.last_topics[topic.namespace] = topic

    def _adopt(self, namespace: str, group_id: str) -> Group:
        key = (namespace, group_id)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = self._new_group(key)
        return group

    def _new_group(self, key: tuple[str, str]) -> Group:
        """A group that goes on where a deleted one of this name has ended."""
        return Group(*key, self.last_generation(key), self.topics)

    def _note_dirty(self, result: Result) -> None:
        for entry in result.records:
            if entry.group_id:
                self._dirty_groups[(entry.namespace, entry.group_id)] = None

    def _fill_group(self, row: GroupRow) -> None:
        key = (row.namespace, row.group_id)
        if row.state == DEAD.value:
            self.tombstones[key] = row
            return
        group = self.groups[key] = Group(*key, row.generation_id, self.topics)
        group.settled = row
        group.state = GroupState(row.state)
        group.assigned_generation_id = row.generation_id if group.state is STABLE else None
        group.join_generation_id = row.join_generation_id
        group.takeovers = row.takeovers
        group.state_since_ms = row.state_since_ms
        group.protocol_type = row.protocol_type
        group.protocol_name = row.protocol_name
        group.rebalance_reason = row.rebalance_reason
        group.rebalance_by = row.rebalance_by
        group.rebalance_cause = row.rebalance_cause
        group.frozen_until_ms = row.frozen_until_ms
        group.frozen_reason = row.frozen_reason
        group.leaving = dict(row.leaving)
        group.quarantine = row.quarantine


def http_date(at_ms: int) -> str:
    """`Sun, 29 Nov 2026 20:35:45 GMT`."""
    return formatdate(at_ms / 1_000, usegmt=True)


def _group_rows(group: Group, changes: RowChanges) -> None:
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
