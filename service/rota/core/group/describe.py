"""Reading a group: describe, list, leader, fence checks, and health. Nothing here changes anything.

A group's owner judges its health, by what it has in memory: so all groups are judged, and by the same rules. What takes
topics of other shards (partitions that no member owns) is computed beside it, each time that the assignment or the
topics have changed, and noted in `Group.unowned`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from shlex import quote

from rota.core.group.rows import GroupState
from rota.core.group.sessions import check_caller, is_in_generation, why
from rota.core.group.state import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, STABLE, ChangeKind, Group, Member
from rota.core.types.leader import PROTOCOL_TYPE as LEADER
from rota.core.types.registry import (
    decoded,
    has_units,
    readable_assignment,
    readable_metadata,
    subscribed_topics,
    subscribes,
    units_of,
)
from rota.protocol.causes import Cause
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import NO_TOKEN, fencing_token, generation_of, takeover_of
from rota.protocol.messages import (
    DescribedMember,
    DescribeReply,
    FenceReply,
    LeaderReply,
    ListedGroup,
    ListGroups,
    ListReply,
    Trouble,
    VerifyFence,
)
from rota.protocol.troubles import LATELY_MS, TroubleKind, harm
from rota.protocol.wording import NAMED, count, duration, listed

# --- describe, list, leader -----------------------------------------------------------------------


GROUP_TYPE = "classic"
MAX_DECODED_MEMBERS = 1_000
"""Of one answer: decoding more would hold other groups' calls up."""


def describe_group(group: Group, now_ms: int) -> DescribeReply:
    """The group with its members: their metadata only while it is Stable, their last assignments until the next ones,
    since they may hold them still.
    """
    return DescribeReply(
        group_id=group.group_id,
        state=group.state.value,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name if group.state is STABLE else "",
        leader_id=group.generation_leader_id or "",
        members=tuple(
            _described(group, member, decodes=number < MAX_DECODED_MEMBERS)
            for number, member in enumerate(group.members.values())
        ),
        pending_members=len(group.pending),
        rebalance_reason=group.rebalance_reason,
        rebalance_by=group.rebalance_by,
        rebalance_cause=group.rebalance_cause,
        state_since_ms=group.state_since_ms,
        phase_deadline_ms=_phase_deadline_ms(group),
        frozen_until_ms=group.frozen_until_ms,
        frozen_reason=group.frozen_reason,
        leaving=tuple(group.leaving_at(now_ms)),
        quarantine_after=group.quarantine.after_falls,
        quarantined=group.quarantine.names,
        preempt_at_ms=group.preempt_at_ms if group.state is STABLE else None,
        generation_protocol_name=group.protocol_name,
        troubles=judge(group, now_ms),
    )


def list_groups(groups: Iterable[Group], request: ListGroups, now_ms: int) -> ListReply:
    """One page of the namespace's groups in these shards, ordered by id."""
    states = {state.strip().lower() for state in request.states}
    types = {kind.lower() for kind in request.group_types}
    if types and GROUP_TYPE not in types:
        return ListReply()
    found = sorted(
        (group for group in groups if _listed(group, request, states)),
        key=lambda group: group.group_id,
    )
    page = found[: request.limit]
    next_after = page[-1].group_id if len(found) > len(page) else None
    return ListReply(next_after=next_after, groups=tuple(_summary(group, now_ms) for group in page))


def get_leader(group: Group) -> LeaderReply:
    """The leader of the current generation; in a join phase that of the last one, while it is a member."""
    leader = group.members.get(group.generation_leader_id or "")
    return LeaderReply(
        generation_id=group.generation_id,
        leader_id=leader.member_id if leader else "",
        group_instance_id=leader.image.group_instance_id if leader else None,
        client_id=leader.image.client_id if leader else "",
        state=group.state.value,
        fencing_token=group.token_of(leader) if leader else NO_TOKEN,
    )


def _listed(group: Group, request: ListGroups, states: set[str]) -> bool:
    return (
        group.namespace == request.namespace
        and group.group_id > request.after
        and (not states or group.state.value.lower() in states)
        and (not request.protocol_types or (group.protocol_type) in request.protocol_types)
        and (not request.topic or _has_subscriber(group, request.topic))
    )


def _has_subscriber(group: Group, topic: str) -> bool:
    """Whether a member is known to subscribe to the topic. Before the first generation no protocol is chosen yet."""
    kind, name = group.protocol_type, group.protocol_name
    return bool(name) and any(
        subscribes(kind, member.image.metadata_for(name), topic) for member in group.members.values()
    )


def _summary(group: Group, now_ms: int) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id,
        state=group.state.value,
        protocol_type=group.protocol_type,
        generation_id=group.generation_id,
        members=len(group.members),
        group_type=GROUP_TYPE,
        takeovers=group.takeovers,
        leader_id=group.generation_leader_id or "",
        state_since_ms=group.state_since_ms,
        rebalance_reason=group.rebalance_reason,
        troubles=judge(group, now_ms),
    )


def _described(group: Group, member: Member, *, decodes: bool) -> DescribedMember:
    image = member.image
    metadata = member.image.metadata_for(group.protocol_name) if group.state is STABLE else b""
    # An assignment that was interrupted has ended those of the generation before, too, as in Kafka 4.
    assigned_id = group.generation_id - 1 if group.state is COMPLETING_REBALANCE else group.generation_id
    assignment = member.assignment if group.assigned_generation_id == assigned_id else b""
    kind = group.protocol_type
    return DescribedMember(
        member_id=image.member_id,
        group_instance_id=image.group_instance_id,
        client_id=image.client_id,
        host=image.host,
        metadata=metadata,
        assignment=assignment,
        session_timeout_ms=image.session_timeout_ms,
        rebalance_timeout_ms=image.rebalance_timeout_ms,
        session_deadline_ms=member.session_deadline_ms,
        joined=member.joined,
        awaited=_is_awaited(group, member),
        fencing_token=group.token_of(member) if member.settled is not None else NO_TOKEN,
        metadata_decoded=decoded(readable_metadata(kind, metadata)) if metadata and decodes else None,
        protocols=tuple(protocol.name for protocol in image.protocols),
        assignment_decoded=decoded(readable_assignment(kind, assignment)) if assignment and decodes else None,
    )


def _is_awaited(group: Group, member: Member) -> bool:
    if group.state is PREPARING_REBALANCE:
        return not member.joined
    return group.state is COMPLETING_REBALANCE and member.member_id in group.pending_sync


def _phase_deadline_ms(group: Group) -> int | None:
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            return group.join_deadline_ms
        case GroupState.COMPLETING_REBALANCE:
            return group.sync_deadline_ms
        case _:
            return None


# --- fence checks ---------------------------------------------------------------------------------


_NAME_THE_MEMBER = "a member of this generation was taken over: name the member, or show its fencing_token"


def verify_fence(group: Group, request: VerifyFence) -> FenceReply:
    """Whether the token, or the generation with the member, is current. The group's answer, in one look."""
    if not _is_current(group, request):
        return FenceReply(ErrorCode.ILLEGAL_GENERATION, generation_id=group.generation_id)
    if request.member_id:
        return _check_member(group, request)
    return _check_without_member(group, request)


def _is_current(group: Group, request: VerifyFence) -> bool:
    """Where both are shown, both must be. No generation has the number 0: protobuf sends it for one that is absent."""
    shown = {request.generation_id} if request.generation_id > 0 else set[int]()
    if request.fencing_token is not None:
        shown.add(generation_of(request.fencing_token))
    return shown == {group.generation_id} and group.state is not EMPTY


def _check_member(group: Group, request: VerifyFence) -> FenceReply:
    if not is_in_generation(group, request.member_id):
        return FenceReply(ErrorCode.UNKNOWN_MEMBER_ID, generation_id=group.generation_id)
    member = group.members[request.member_id]
    if request.sign and (error := check_caller(member, request.subject)) is not ErrorCode.NONE:
        return FenceReply(error, why(error, group, None), generation_id=group.generation_id)
    if request.fencing_token not in (None, group.token_of(member)):
        detail = "the fencing_token is not this member's"
        return FenceReply(ErrorCode.ILLEGAL_GENERATION, detail, generation_id=group.generation_id)
    return _holds(group, member)


def _check_without_member(group: Group, request: VerifyFence) -> FenceReply:
    """A successor's token names its holder. The members that took no place over share one, which a predecessor had."""
    takeover = takeover_of(request.fencing_token or 0)
    if takeover:
        holder = next((m for m in group.members.values() if m.takeover == takeover), None)
        if holder is not None:
            return _holds(group, holder)
        return FenceReply(ErrorCode.ILLEGAL_GENERATION, generation_id=group.generation_id)
    if group.takeovers:
        return FenceReply(ErrorCode.MEMBER_ID_REQUIRED, _NAME_THE_MEMBER, generation_id=group.generation_id)
    return FenceReply(generation_id=group.generation_id, fencing_token=fencing_token(group.generation_id))


def _holds(group: Group, member: Member) -> FenceReply:
    return FenceReply(
        generation_id=group.generation_id,
        is_leader=group.generation_leader_id == member.member_id,
        is_member=True,
        fencing_token=group.token_of(member),
        group_instance_id=member.image.group_instance_id,
    )


# --- health ---------------------------------------------------------------------------------------


STORM = 12
"""This many recent rebalances are more than a rollout causes."""
SEVERAL = 3
"""This many recent rebalances because of a failure, or takeovers of one place, are no accident."""
STUCK_MS = 10_000
"""Members rejoin with their next heartbeat, so a phase that waits this long waits for a member that does not."""
MISSED = 2
"""A member is silent when it has missed so many heartbeats."""
LEAST_INTERVAL_MS = 3_000
"""Kafka's default: a member that called twice in a moment still has this long until its next heartbeat."""
UNKNOWN_INTERVAL_MS = 60_000
"""The longest interval that is assumed of a member without a heartbeat yet."""
TAKEOVER = ChangeKind.TAKEOVER
_FAILURES = frozenset({Cause.MEMBER_EXPIRED, Cause.SYNC_TIMEOUT, Cause.ASSIGNMENT_FAILED, Cause.ASSIGNMENT_OUTDATED})


def judge(group: Group, now_ms: int) -> tuple[Trouble, ...]:
    """The troubles of a group, the worst first. It reads, and changes nothing."""
    match group.state:
        case GroupState.STABLE:
            found = [*_unowned(group), *_silent(group, now_ms)]
        case GroupState.EMPTY:
            found = [*_deserted(group, now_ms)]
        case _:
            found = [*_stuck(group, now_ms)]
    return tuple(sorted((*found, *_restless(group, now_ms)), key=lambda each: harm((each,))))


# --- silence ----------------------------------------------------------------------------------------


def silent_ms(member: Member, now_ms: int) -> int:
    """Time since the last heartbeat; 0 while a call of the member waits, which proves that it is alive."""
    return 0 if member.seen_at_ms is None else now_ms - member.seen_at_ms


def is_silent(member: Member, now_ms: int) -> bool:
    """Whether the member has missed heartbeats, by the longest interval that was seen of it."""
    longest_ms = member.image.session_timeout_ms // 3
    seen_ms = member.gaps.longest_ms if member.gaps is not None else member.longest_gap_ms
    interval_ms = max(seen_ms, LEAST_INTERVAL_MS) if seen_ms else UNKNOWN_INTERVAL_MS
    return silent_ms(member, now_ms) > MISSED * min(interval_ms, longest_ms)


def _silent(group: Group, now_ms: int) -> Iterable[Trouble]:
    leader_id = group.generation_leader_id
    is_election = group.protocol_type == LEADER
    found = [
        member
        for member in group.members.values()
        if member.session_deadline_ms is not None
        and (member.member_id == leader_id or (member.assignment and not is_election))
        and is_silent(member, now_ms)
    ]
    if found:
        first = max(found, key=lambda member: silent_ms(member, now_ms))
        leads = ", which leads," if first.member_id == leader_id else ""
        left = duration((first.session_deadline_ms or now_ms) - now_ms)
        text = (
            f"{_named(first)}{leads} sent no heartbeat for {duration(silent_ms(first, now_ms))}; "
            f"it expires in {left}, unless it sends a heartbeat first."
        )
        yield _trouble(group, TroubleKind.SILENT, text, "remove-member", first.member_id, number=len(found))


# --- phases -----------------------------------------------------------------------------------------


def _stuck(group: Group, now_ms: int) -> Iterable[Trouble]:
    if group.state is PREPARING_REBALANCE:
        awaited, to_do = [member for member in group.members.values() if not member.joined], "join again"
        if not awaited and not group.pending:
            return  # The initial delay of the first generation.
    else:
        leader_id = group.generation_leader_id or ""
        ids, to_do = ([leader_id], "assign") if leader_id in group.pending_sync else (group.pending_sync, "sync")
        awaited = [group.members[member_id] for member_id in ids]
    awaited.sort(key=lambda member: -silent_ms(member, now_ms))
    took_ms = now_ms - group.state_since_ms
    if took_ms > STUCK_MS or (awaited and is_silent(awaited[0], now_ms)):
        whom, step = "new members or the server", ["why"]
        if awaited:
            others = f" and {count(len(awaited) - 1, 'other')}" if awaited[1:] else ""
            last = f"last heartbeat {duration(silent_ms(awaited[0], now_ms))} ago"
            whom, step = f"{_named(awaited[0])} ({last}){others} to {to_do}", ["remove-member", awaited[0].member_id]
        text = f"It has rebalanced for {duration(took_ms)} and waits for {whom}. No member gets a new share until then."
        yield _trouble(group, TroubleKind.STUCK, text, *step)


# --- work that no member does -----------------------------------------------------------------------


def _deserted(group: Group, now_ms: int) -> Iterable[Trouble]:
    """The last member expired. One that left had done its work, such as a nightly job."""
    kind = group.protocol_type
    if group.rebalance_cause in (Cause.MEMBER_EXPIRED, Cause.SYNC_TIMEOUT) and (kind == LEADER or has_units(kind)):
        text = f"It has had no member for {duration(now_ms - group.state_since_ms)}: {group.rebalance_reason}."
        yield _trouble(group, TroubleKind.LEADERLESS if kind == LEADER else TroubleKind.UNOWNED, text, "history")


def may_divide_topics(group: Group) -> bool:
    """Whether the shares of its members may be partitions of topics."""
    return group.state is STABLE and has_units(group.protocol_type)


def unowned_partitions(
    group: Group, members: Sequence[Member], topics: Mapping[str, int]
) -> tuple[int, tuple[str, ...]]:
    """How many partitions of registered topics are subscribed to without an owner, and the first ones: `docs/3`.

    It takes long for a large group, so it may run in a thread: `members` is a copy.
    """
    kind, wanted, patterns = group.protocol_type, set[str](), list[bytes]()
    for metadata in dict.fromkeys(member.image.metadata_for(group.protocol_name) for member in members):
        names = subscribed_topics(kind, metadata)
        if names is None:
            patterns.append(metadata)
        else:
            wanted |= names
    wanted |= {topic for topic in topics if any(subscribes(kind, metadata, topic) for metadata in patterns)}
    owned = {*group.quarantine.names}.union(*(units_of(kind, member.assignment) for member in members))
    known = sorted(wanted & topics.keys())
    of_topic = Counter(unit.rpartition("/")[0] for unit in owned if _is_partition(unit, topics))
    number = sum(topics[topic] - of_topic[topic] for topic in known)
    units = (f"{topic}/{each}" for topic in known if of_topic[topic] < topics[topic] for each in range(topics[topic]))
    return number, tuple(islice((unit for unit in units if unit not in owned), NAMED + 1)) if number else ()


def _is_partition(unit: str, topics: Mapping[str, int]) -> bool:
    topic, _, number = unit.rpartition("/")
    return (
        len(number) < 10
        and number.isascii()
        and number.isdecimal()
        and unit == f"{topic}/{int(number)}"
        and (int(number) < topics.get(topic, 0))
    )


def _unowned(group: Group) -> Iterable[Trouble]:
    generation_id, number, first = group.unowned
    if number and generation_id == group.generation_id:
        text = (
            f"{count(number, 'partition')} of registered topics without an owner: {listed(first, number)}. The "
            f"assignment of {group.generation_leader_id} by {group.protocol_name!r} leaves them out."
        )
        yield _trouble(group, TroubleKind.UNOWNED, text, "rebalance", number=number)


# --- changes that come too often --------------------------------------------------------------------


def _restless(group: Group, now_ms: int) -> Iterable[Trouble]:
    """Static members whose copies fence each other, and rebalances that come too often."""
    recent = [change for change in group.changes if change.at_ms >= now_ms - LATELY_MS]
    lately = f"within {duration(LATELY_MS)}"
    takeovers = Counter(change.name for change in recent if change.kind is TAKEOVER)
    if contested := [(name, times) for name, times in takeovers.most_common() if times >= SEVERAL]:
        name, times = contested[0]
        last = next(change.reason for change in reversed(recent) if (change.kind, change.name) == (TAKEOVER, name))
        text = (
            f"{name} was taken over {times} times {lately}, the last time because {last}. Two processes have this "
            f"group_instance_id, or one starts again and again: each start fences the process before."
        )
        yield _trouble(group, TroubleKind.CONTESTED, text, "history", "--since", "10m", number=len(contested))
    causes = Counter(change.name for change in recent if change.kind is ChangeKind.REBALANCE)
    if causes.total() >= STORM or sum(causes[cause] for cause in _FAILURES) >= SEVERAL:
        parts = ", ".join(f"{times} × {cause.replace('_', ' ')}" for cause, times in causes.most_common())
        clients = Counter(change.name for change in recent if change.kind is ChangeKind.DEPARTURE).most_common(NAMED)
        by = [f"{name} ({times} times)" for name, times in clients if times >= SEVERAL]
        departed = f" Clients that left or expired most: {', '.join(by)}." if by else ""
        text = f"It changed {causes.total()} times {lately}: {parts}.{departed}"
        yield _trouble(group, TroubleKind.FLAPPING, text, "history", "--since", "10m")


def _trouble(group: Group, kind: TroubleKind, text: str, verb: str, *more: str, number: int = 1) -> Trouble:
    words: Sequence[str] = (verb, group.group_id, *more)
    namespace = () if group.namespace == "default" else ("--namespace", group.namespace)
    step = " ".join(quote(word) for word in ("rota", "groups", *words, *namespace))
    return Trouble(kind.value, text, step, number)


def _named(member: Member) -> str:
    host = member.image.host
    return f"{member.member_id} at {host}" if host else member.member_id
