"""A shard: the groups and topics of one slice, and the one door through which commands and time reach them.

`handle` and `on_timer` decide and fold, into the state that `ShardState` keeps. All of it is deterministic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from email.utils import formatdate

from msgspec.structs import replace

from rota.core.group.assignment import AssignmentJob, ask_for_assignment, assignment_job, is_current
from rota.core.group.describe import describe_group, get_leader, list_groups, verify_fence
from rota.core.group.join import check_join, join_group, reject_join
from rota.core.group.maintenance import (
    drain_member,
    freeze_group,
    on_release_timer,
    on_thaw_timer,
    quarantine_group,
    refuse_newcomer,
    watch_freeze,
    watch_quarantine,
)
from rota.core.group.offsets import (
    commit_offsets,
    delete_offsets,
    expired_offsets,
    fetch_offsets,
    forget_topic,
    take_in,
)
from rota.core.group.rebalance import (
    force_rebalance,
    leave_group,
    on_join_timer,
    on_pending_timer,
    on_preempt_timer,
    on_session_timer,
    on_sync_timer,
    raise_generation,
    removes_members,
)
from rota.core.group.records import (
    Administered,
    Entry,
    GroupDeleted,
    OffsetsDeleted,
    ShardAcquired,
    ShardReleased,
    TopicChanged,
)
from rota.core.group.rows import GroupRow, OffsetRow, RowChanges, ShardImage, SideCommit, TopicRow
from rota.core.group.sessions import (
    MemberName,
    heartbeat,
    heartbeat_many,
    report_gaps,
    shorten_sessions,
    start_sessions,
    unpark_heartbeat,
)
from rota.core.group.state import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    Group,
    Member,
    Result,
    Timer,
    TimerKind,
    apply,
    record,
)
from rota.core.group.succession import watch_candidates
from rota.core.group.sync import finish_job, sync_group
from rota.core.group.topics import check_put, list_topics, no_topic, topic_reply
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import (
    Act,
    Audited,
    CommitOffsets,
    DeleteGroup,
    DeleteGroupReply,
    DeleteOffsets,
    DeleteTopic,
    DescribeGroup,
    DrainMember,
    FetchOffsets,
    ForgetTopic,
    FreezeGroup,
    GetLeader,
    GetTopic,
    GroupRequest,
    Heartbeat,
    HeartbeatError,
    HeartbeatMany,
    HeartbeatManyReply,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    LeftMember,
    ListGroups,
    ListTopics,
    PutTopic,
    QuarantineGroup,
    RebalanceGroup,
    Reply,
    Request,
    SyncGroup,
    SyncReply,
    TopicReply,
    TopicRequest,
    VerifyFence,
)
from rota.protocol.troubles import LATELY_MS

UNKNOWN_MEMBER_ID = ErrorCode.UNKNOWN_MEMBER_ID
MAX_EMPTY_GROUPS = 500
"""So many Empty groups without offsets does a shard keep: each takes 2.4 KiB of memory, a deleted one 0.6 KiB."""
Lost = Mapping[tuple[str, str], tuple[tuple[str, int, int], ...]]
"""By namespace and group id: what the store has lost, as in `GenerationRaised`."""


# --- what a shard knows -----------------------------------------------------------------------------


class ShardState:
    """All groups and topics of one slice in memory, folded from rows or journal lines, and which rows have to follow.

    Nothing is decided here: a reader that only follows a journal, as `rota db verify` does, needs no more than this.
    """

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
            owner = self._group_of(offset)
            if owner is not None:
                owner.offsets[(offset.topic, offset.partition)] = offset
        for topic in image.topics:
            self._keep_topic(topic)

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
            *group.key,
            DEAD.value,
            generation_id,
            generation_id,
            state_since_ms=at_ms,
            rebalance_reason=reason,
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

    def _group_of(self, place: GroupRequest | Timer | AssignmentJob | OffsetRow) -> Group | None:
        return self.groups.get((place.namespace, place.group_id))

    def _adopt(self, namespace: str, group_id: str) -> Group:
        key = (namespace, group_id)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = self._new_group(key)
        return group

    def _new_group(self, key: tuple[str, str]) -> Group:
        """Create a group. Its generations follow those of a deleted group with this name."""
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
        group.resume(row)


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


# --- what it decides --------------------------------------------------------------------------------


class Shard(ShardState):
    """The state with what may be asked of it.

    A `call` is the runtime's number for a request that waits for its reply; a parked one is released
    by the result of a later command or timer, exactly once.
    """

    def __init__(self, shard_id: int, limits: Limits) -> None:
        super().__init__(shard_id)
        self.limits = limits
        self.generation_floor = 0
        """No group grants this generation or an earlier one."""
        self.seen: dict[Member, Group] | None = None
        """Members with a session that began or stopped since this was last taken; None if it is not used."""

    # --- commands -----------------------------------------------------------------------------

    def handle(self, request: Request, call: int, now_ms: int) -> Result:
        """Decide one request at `now_ms`. The reply is in the result, or parked under `call`."""
        result = Result(now_ms, self.limits, self.seen)
        match request:
            case Heartbeat():
                group = self.groups.get((request.namespace, request.group_id))
                if group is None:
                    result.reply(call, HeartbeatReply(_missing(request)))
                else:
                    heartbeat(result, group, request, call)
            case CommitOffsets():
                result.reply(call, self._commit(result, request))
            case JoinGroup():
                self._join(result, request, call)
            case SyncGroup():
                group = self._group(request)
                if group is None:
                    result.reply(call, SyncReply(_missing(request)))
                else:
                    sync_group(result, group, request, call)
            case HeartbeatMany():
                group = self._group(request)
                if group is None:
                    errors = tuple(HeartbeatError(beat.member_id, _missing(request)) for beat in request.members)
                    result.reply(call, HeartbeatManyReply(state=DEAD.value, errors=errors))
                else:
                    heartbeat_many(result, group, request, call)
            case LeaveGroup():
                result.reply(call, self._leave(result, request))
            case FetchOffsets():
                key = (request.namespace, request.group_id)
                result.reply(call, fetch_offsets(self.groups.get(key) or self._new_group(key), request))
            case _:
                result.reply(call, self._administer(result, request))
        if result.records:
            if isinstance(request, Audited) and request.act is not None:
                self._audit(result, request, request.act)
            self._note_dirty(result)
        return result

    def on_timer(self, timer: Timer, now_ms: int) -> Result:
        """A timer that an earlier result set has fired; stale ones do nothing."""
        result = Result(now_ms, self.limits, self.seen)
        group = self._group_of(timer)
        if group is None:
            return result
        match timer.kind:
            case TimerKind.SESSION:
                on_session_timer(result, group, timer)
            case TimerKind.JOIN:
                on_join_timer(result, group, timer.at_ms)
            case TimerKind.SYNC:
                on_sync_timer(result, group, timer)
            case TimerKind.PENDING:
                on_pending_timer(result, group, timer)
            case TimerKind.THAW:
                on_thaw_timer(result, group, timer.at_ms)
            case TimerKind.RELEASE:
                on_release_timer(result, group)
            case TimerKind.PREEMPT:
                on_preempt_timer(result, group, timer.at_ms)
            case TimerKind.ASSIGN:
                pass  # The replica hands the assignment in, with `finish_job`.
        self._note_dirty(result)
        return result

    def unpark(self, request: Request, call: int, now_ms: int, *, answer: bool) -> Result:
        """A parked call's own time is over (`answer`), or its client hung up. The member itself stays.

        Does nothing when the call is not parked any more.
        """
        result = Result(now_ms, self.limits, self.seen)
        group = self._group(request)
        member = _parked_member(group, request, call) if group is not None else None
        if group is not None and member is not None:
            _unpark(result, group, member, call, answer=answer)
        return result

    def sweep(self, now_ms: int, *, empty_since_ms: int | None = None) -> tuple[Result, int]:
        """Expire offsets, then delete Empty groups that hold none. Returns how many things went.

        A group is kept for a retention after it became Empty, so that operators can still ask why it has no members.
        The retention ends at `empty_since_ms`: progress may have been committed past us from then on.
        """
        result = Result(now_ms, self.limits, self.seen)
        gone, kept = 0, list[Group]()
        until_ms = now_ms + 1 if empty_since_ms is None else empty_since_ms
        retention_ms, interval_ms = self.limits.empty_group_retention_ms, self.limits.session_stats_interval_ms
        for group in list(self.groups.values()):
            counts = ((member, member.gaps) for member in group.members.values() if interval_ms)
            report_gaps(result, group, [m for m, gaps in counts if gaps and now_ms - gaps.since_ms >= interval_ms])
            if group.changes and group.changes[-1].at_ms < now_ms - LATELY_MS:
                group.changes.clear()
            over, none_left = expired_offsets(group, now_ms, self.limits)
            if over:
                record(result, group, OffsetsDeleted(tuple(over), "expired"))
                gone += len(over)
            # An administrator has set a rule of quarantine: it does not go in silence.
            has_rule = bool(group.quarantine.after_falls or group.quarantine.units)
            is_unused = group.state is EMPTY and not group.pending and not has_rule
            if none_left and is_unused and group.state_since_ms < until_ms:
                kept.append(group)
        kept.sort(key=lambda group: group.state_since_ms)
        for number, group in enumerate(kept):
            if number < len(kept) - MAX_EMPTY_GROUPS or group.state_since_ms + retention_ms < until_ms:
                self._delete(result, group, "nothing was left in it")
                gone += 1
        self._note_dirty(result)
        return result, gone

    def take_in(self, commits: Sequence[SideCommit], now_ms: int) -> Result:
        """Learn what users' own transactions have committed.

        To be called while none of this shard's writes is in flight: then everything that does not wait to be written is
        in the store as memory says, or was overwritten there by one of `commits`.
        """
        result = Result(now_ms, self.limits, self.seen)
        take_in(result, self.groups, commits)
        self._taken_in.update((commit.side_id, commit) for commit in commits)
        self._note_dirty(result)
        return result

    # --- after the store went back ----------------------------------------------------------------

    @property
    def highest_generation(self) -> int:
        """No group of this shard has granted a later one."""
        live = (group.generation_id for group in self.groups.values())
        return max(self.generation_floor, *live, *(row.generation_id for row in self.tombstones.values()), 0)

    def raise_generations(self, result: Result, floor: int, lost: Lost) -> None:
        """Grant no generation up to `floor` any more. Empty groups follow when a member joins."""
        self.generation_floor = max(self.generation_floor, floor)
        reason = f"the store went back: no generation up to {floor} is granted"
        for group in list(self.groups.values()):
            if group.generation_id < floor and group.state is not EMPTY:
                raise_generation(result, group, floor, reason, lost.get(group.key, ()))
        self._note_dirty(result)

    # --- assigning for the members ----------------------------------------------------------------

    def assignment_job(self, namespace: str, group_id: str) -> AssignmentJob | None:
        """What the server has to assign for a group, None if nothing (any more)."""
        return assignment_job(self.groups.get((namespace, group_id)))

    def note_asked(self, timer: Timer, now_ms: int) -> None:
        """The server is about to assign the timer's group: by the time of this moment."""
        group = self._group_of(timer)
        if group is not None:
            group.asked_ms = max(group.asked_ms, now_ms)

    def is_current(self, job: AssignmentJob) -> bool:
        """Whether the group is still as the job found it: if not, `finish_job` does nothing."""
        return is_current(self._group_of(job), job)

    def finish_job(self, job: AssignmentJob, outcome: Mapping[str, bytes] | str, now_ms: int) -> Result:
        """Take in the assignments that were computed, or why they could not be. Late ones do nothing."""
        result = Result(now_ms, self.limits, self.seen)
        finish_job(result, self._group_of(job), job, outcome)
        self._note_dirty(result)
        return result

    # --- sessions that replicas share -------------------------------------------------------------

    def share_sessions(
        self, seen_ms_ago: Mapping[MemberName, int], grace_ms: int, now_ms: int, unknown_ms_ago: int | None = None
    ) -> Result:
        """Note from here on which members send heartbeats. See `shorten_sessions`."""
        self.seen = {}
        result = Result(now_ms, self.limits)
        shorten_sessions(result, self.groups.values(), seen_ms_ago, grace_ms, unknown_ms_ago)
        return result

    def removes_members(self, timer: Timer, now_ms: int) -> bool:
        """Return whether this timer removes members now because they are silent."""
        group = self._group_of(timer)
        return group is not None and removes_members(group, timer, now_ms)

    def extend_session(self, timer: Timer, seen_ms_ago: int, now_ms: int) -> None:
        """Another replica saw the member of this session timer so long ago."""
        group = self._group_of(timer)
        member = group.members.get(timer.member_id) if group is not None else None
        if member is not None and member.session_deadline_ms is not None:
            seen_until_ms = now_ms - seen_ms_ago + member.image.session_timeout_ms
            member.session_deadline_ms = max(member.session_deadline_ms, seen_until_ms)

    def has_member(self, name: MemberName) -> bool:
        """Whether this is a member of one of the shard's groups."""
        namespace, group_id, member_id = name
        group = self.groups.get((namespace, group_id))
        return group is not None and member_id in group.members

    def mark_all_seen(self) -> None:
        """Mark all members as seen since `seen` was last taken."""
        self.seen = {member: group for group in self.groups.values() for member in group.members.values()}

    def take_seen(self) -> dict[MemberName, int | None]:
        """The time of each member's last session start; None while a parked call proves that the member is alive."""
        seen, self.seen = self.seen or {}, {}
        return {
            (*group.key, member.member_id): member.seen_at_ms
            for member, group in seen.items()
            if group.members.get(member.member_id) is member
        }

    # --- folding ------------------------------------------------------------------------------

    @classmethod
    def load(cls, image: ShardImage, limits: Limits, now_ms: int) -> tuple[Shard, Result]:
        """A shard as the store has it. No call is parked, and every session starts again.

        Kafka does the same when a coordinator loads a partition; where the liveness store knows less time is
        left, the runtime shortens it. The result holds the timers to set.
        """
        shard = cls(image.shard_id, limits)
        shard.fill(image)
        result = Result(now_ms, limits)
        for group in shard.groups.values():
            _resume(result, group)
        return shard, result

    # --- one request each ---------------------------------------------------------------------

    def _join(self, result: Result, request: JoinGroup, call: int) -> None:
        key = (request.namespace, request.group_id)
        refusal = self._check_join_request(request)
        group = self.groups.get(key)
        if refusal is None and group is None and request.member_id:
            refusal = JoinReply(UNKNOWN_MEMBER_ID, member_id=request.member_id)
        if refusal is not None:
            result.reply(call, refusal)
            return
        group = group or self._new_group(key)
        refusal = check_join(group, request, self.limits) or refuse_newcomer(group, request, result.now_ms)
        if refusal is not None:
            reject_join(result, group, request, refusal, call)
            return
        # A refused newcomer leaves no Empty group behind (protocol.md §9): the group is kept from here on.
        self.groups[key] = group
        join_group(result, group, request, call, self.generation_floor)

    def _check_join_request(self, request: JoinGroup) -> JoinReply | None:
        if not request.group_id:
            return JoinReply(ErrorCode.INVALID_GROUP_ID, member_id=request.member_id)
        lowest, highest = self.limits.min_session_timeout_ms, self.limits.max_session_timeout_ms
        if not lowest <= request.session_timeout_ms <= highest:
            detail = f"session_timeout_ms must be {lowest} to {highest}"
            return JoinReply(ErrorCode.INVALID_SESSION_TIMEOUT, detail=detail, member_id=request.member_id)
        return None

    def _leave(self, result: Result, request: LeaveGroup) -> Reply:
        group = self._group(request)
        if group is not None:
            return leave_group(result, group, request)
        if request.by_admin or not request.group_id:
            return self._no_group(request)
        unknown = tuple(LeftMember(m.member_id, m.group_instance_id, UNKNOWN_MEMBER_ID) for m in request.members)
        return LeaveReply(members=unknown)

    def _commit(self, result: Result, request: CommitOffsets) -> Reply:
        group = self._group_of(request)
        if group is None and request.group_id and request.is_standalone:
            group = self._adopt(request.namespace, request.group_id)
            group.state_since_ms = result.now_ms
        return self._no_group(request) if group is None else commit_offsets(result, group, request)

    def _administer(self, result: Result, request: Request) -> Reply:
        match request:
            case ListGroups():
                return list_groups(self.groups.values(), request, result.now_ms)
            case PutTopic():
                return self._put_topic(result, request)
            case GetTopic():
                topic = self.topics.get((request.namespace, request.topic))
                return topic_reply(topic) if topic and topic.partitions else no_topic(request)
            case DeleteTopic():
                return self._delete_topic(result, request)
            case ForgetTopic():
                groups = self._forget_topic(result, request, request.topic_id, "deleted: its progress does not count")
                return TopicReply(topic=request.topic, groups=groups)
            case ListTopics():
                return list_topics(self.topics.values(), self.last_topics.get(request.namespace), request)
            case _:
                group = self._group(request)
                return self._no_group(request) if group is None else self._administer_group(result, group, request)

    def _administer_group(self, result: Result, group: Group, request: Request) -> Reply:
        match request:
            case DescribeGroup():
                return describe_group(group, result.now_ms)
            case VerifyFence():
                return verify_fence(group, request)
            case GetLeader():
                return get_leader(group)
            case DeleteGroup():
                return self._delete_group(result, group, request)
            case RebalanceGroup():
                return force_rebalance(result, group, request)
            case FreezeGroup():
                return freeze_group(result, group, request)
            case QuarantineGroup():
                return quarantine_group(result, group, request)
            case DrainMember():
                return drain_member(result, group, request)
            case DeleteOffsets():
                return delete_offsets(result, group, request)
            case _:
                raise AssertionError(f"no handler for {type(request).__name__}")

    def _no_group(self, request: Request) -> Reply:
        """The answer to a request to a group that is not there: it was deleted, or never was."""
        assert isinstance(request, GroupRequest)
        if not request.group_id:
            return refuse(request, ErrorCode.INVALID_GROUP_ID, "")
        name = f"group {request.group_id!r} in namespace {request.namespace!r}"
        former = self.tombstones.get((request.namespace, request.group_id))
        if former is None:
            return refuse(request, ErrorCode.GROUP_ID_NOT_FOUND, f"No such {name}")
        error = ErrorCode.GROUP_DELETED if isinstance(request, DescribeGroup) else ErrorCode.GROUP_ID_NOT_FOUND
        since = http_date(former.state_since_ms)
        return refuse(request, error, f"The {name} was deleted on {since}: {former.rebalance_reason}")

    def _delete_group(self, result: Result, group: Group, request: DeleteGroup) -> DeleteGroupReply:
        if group.state is not EMPTY:
            return DeleteGroupReply(ErrorCode.NON_EMPTY_GROUP, detail=f"it has {len(group.members)} members")
        if group.offsets:
            record(result, group, OffsetsDeleted(tuple(group.offsets), "request"))
        self._delete(result, group, f"deleted on request{f': {request.reason}' if request.reason else ''}")
        return DeleteGroupReply()

    def _put_topic(self, result: Result, request: PutTopic) -> TopicReply:
        key = (request.namespace, request.topic)
        topic = self.topics.get(key)
        refusal = check_put(topic, request, self.limits)
        if refusal is not None:
            return refusal
        if topic is not None and not topic.partitions and topic.topic_id != request.topic_id:
            detail = "progress of the deleted topic of this name is being deleted"
            return TopicReply(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, detail, forget_id=self._next_revision(request.namespace)
            )
        attributes = tuple(sorted(request.attributes.items()))
        if topic is None or (topic.partitions, topic.attributes) != (request.partitions, attributes):
            change = TopicChanged(
                request.topic, request.partitions, attributes, revision=self._next_revision(request.namespace)
            )
            self._record_topic(result, request.namespace, change)
        return topic_reply(self.topics[key])

    def _delete_topic(self, result: Result, request: DeleteTopic) -> TopicReply:
        topic = self.topics.get((request.namespace, request.topic))
        if topic is None:
            return no_topic(request)
        if not topic.partitions:
            # The shard's former owner may have ended before the other shards have forgotten the topic.
            return replace(no_topic(request), forget_id=topic.topic_id)
        forget_id = self._next_revision(request.namespace)
        groups = self._forget_topic(result, request, forget_id, "deleted on request")
        return replace(topic_reply(topic), groups=groups, forget_id=forget_id)

    def _forget_topic(self, result: Result, request: TopicRequest, topic_id: int, reason: str) -> int:
        """Delete the progress of earlier topics of this name, and remember that. How many groups had any.

        Does nothing if a later deletion was recorded here: what groups have committed since is progress of that topic.
        """
        namespace, former = request.namespace, self.topics.get((request.namespace, request.topic))
        if former is not None and former.topic_id >= topic_id:
            return 0
        of_namespace = [group for group in self.groups.values() if group.namespace == namespace]
        groups = sum(forget_topic(result, group, request.topic) for group in of_namespace)
        self._record_topic(result, namespace, TopicChanged(request.topic, 0, (), reason, topic_id))
        return groups

    def _next_revision(self, namespace: str) -> int:
        last = self.last_topics.get(namespace)
        return 1 if last is None else last.revision + 1

    # --- facts that are the shard's, not a group's -----------------------------------------------

    def _delete(self, result: Result, group: Group, reason: str) -> None:
        record = GroupDeleted(group.generation_id, reason)
        if group.settled is not None:
            result.records.append(Entry(group.namespace, group.group_id, group.generation_id, result.now_ms, record))
            self._remove(group, record, result.now_ms)
        else:
            del self.groups[group.key]

    def _record_topic(self, result: Result, namespace: str, record: TopicChanged) -> None:
        self._apply_topic(namespace, record)
        result.records.append(Entry(namespace, "", 0, result.now_ms, record))

    def _audit(self, result: Result, request: Request, act: Act) -> None:
        """Record the author of a result that changed something. The generation of a deleted group is its last."""
        group, group_id = self._group(request), request.group_id if isinstance(request, GroupRequest) else ""
        former = self.last_generation((request.namespace, group_id))
        generation_id = group.generation_id if group is not None else former
        note = act.note or _reason(request)
        administered = Administered(type(request).__name__, act.actor, _target(request), note, act.origin)
        result.records.append(Entry(request.namespace, group_id, generation_id, result.now_ms, administered))

    def _group(self, request: Request) -> Group | None:
        return self._group_of(request) if isinstance(request, GroupRequest) else None


def _target(request: Request) -> str:
    if isinstance(request, LeaveGroup):
        return ", ".join(member.member_id or member.group_instance_id or "" for member in request.members)
    if isinstance(request, QuarantineGroup):
        return ", ".join(request.release)
    return request.topic if isinstance(request, TopicRequest) else ""


def _reason(request: Request) -> str:
    match request:
        case LeaveGroup():
            return next((member.reason for member in request.members if member.reason), "")
        case DeleteGroup() | RebalanceGroup() | FreezeGroup() | QuarantineGroup():
            return request.reason
        case _:
            return ""


def _missing(request: Heartbeat | HeartbeatMany | SyncGroup) -> ErrorCode:
    return UNKNOWN_MEMBER_ID if request.group_id else ErrorCode.INVALID_GROUP_ID


def _parked_member(group: Group, request: Request, call: int) -> Member | None:
    """The caller: the member that the request names, or the static newcomer that it made one."""
    if not isinstance(request, JoinGroup | SyncGroup | Heartbeat):
        return None
    member_id = request.member_id or group.static_members.get(request.group_instance_id or "", "")
    member = group.members.get(member_id)
    parks = member is not None and call in (member.join_call, member.sync_call, member.heartbeat_call)
    return member if parks else None


def _unpark(result: Result, group: Group, member: Member, call: int, *, answer: bool) -> None:
    """The member stays joined, and its session runs again."""
    if call == member.heartbeat_call:
        unpark_heartbeat(result, group, member, answer=answer)
        return
    reply: Reply = SyncReply(pending=True, generation_id=group.generation_id)
    if call == member.join_call:
        member.join_call = None
        reply = JoinReply(pending=True, member_id=member.member_id, generation_id=group.generation_id)
    else:
        member.sync_call = None
    if answer:
        result.reply(call, reply)
    start_sessions(result, group, (member,))


def _resume(result: Result, group: Group) -> None:
    """Set a loaded group going again: sessions afresh, and the phase it was in gets its whole time."""
    start_sessions(result, group, group.members.values())
    group.loaded_ms = result.now_ms
    watch_freeze(result, group, is_loaded=True)
    watch_quarantine(result, group)
    timeout_ms = group.rebalance_timeout_ms()
    if group.state is PREPARING_REBALANCE:
        group.rebalance_started_ms = result.now_ms
        group.join_deadline_ms = result.now_ms + timeout_ms
        result.set_timer(TimerKind.JOIN, group, "", group.join_deadline_ms)
    elif group.state is COMPLETING_REBALANCE:
        group.pending_sync = dict.fromkeys(group.members)
        group.sync_deadline_ms = result.now_ms + timeout_ms
        result.set_timer(TimerKind.SYNC, group, "", group.sync_deadline_ms)
        ask_for_assignment(result, group)
    elif group.state is STABLE:
        # Its topics may have changed while it had no owner.
        ask_for_assignment(result, group)
        watch_candidates(result, group)
