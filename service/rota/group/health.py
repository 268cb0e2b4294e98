"""The health of a group: one function judges it, for lists, explanations, gauges and so for alerts.

Its owner judges it, by what it has in memory: so all groups are judged, and by the same rules. What takes topics of
other shards (partitions that no member owns) is computed beside it, each time that the assignment or the topics have
changed, and noted in `Group.unowned`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from shlex import quote

from rota.group.state import (
    PREPARING_REBALANCE,
    STABLE,
    ChangeKind,
    Group,
    GroupState,
    Member,
)
from rota.protocol.causes import Cause
from rota.protocol.messages import Trouble
from rota.protocol.troubles import LATELY_MS, TroubleKind, harm
from rota.protocol.wording import NAMED, count, duration, listed
from rota.types.leader import PROTOCOL_TYPE as LEADER
from rota.types.registry import has_units, subscribed_topics, subscribes, units_of

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
    deadline_ms = member.session_deadline_ms
    return 0 if deadline_ms is None else now_ms - deadline_ms + member.image.session_timeout_ms


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
    kind = group.protocol_type or ""
    if group.rebalance_cause in (Cause.MEMBER_EXPIRED, Cause.SYNC_TIMEOUT) and (kind == LEADER or has_units(kind)):
        text = f"It has had no member for {duration(now_ms - group.state_since_ms)}: {group.rebalance_reason}."
        yield _trouble(group, TroubleKind.LEADERLESS if kind == LEADER else TroubleKind.UNOWNED, text, "history")


def may_divide_topics(group: Group) -> bool:
    """Whether the shares of its members may be partitions of topics."""
    return group.state is STABLE and has_units(group.protocol_type or "")


def unowned_partitions(group: Group, members: Sequence[Member], topics: Mapping[str, int]) -> tuple[str, ...]:
    """Partitions of registered topics that a member subscribes to, and no member owns, such as `docs/3`.

    It takes long for a large group, so it may run in a thread: `members` is a copy.
    """
    kind, wanted, patterns = group.protocol_type or "", set[str](), list[bytes]()
    for metadata in dict.fromkeys(member.image.metadata_for(group.protocol_name or "") for member in members):
        names = subscribed_topics(kind, metadata)
        if names is None:
            patterns.append(metadata)
        else:
            wanted |= names
    wanted |= {topic for topic in topics if any(subscribes(kind, metadata, topic) for metadata in patterns)}
    owned = {*group.quarantine.names}.union(*(units_of(kind, member.assignment) for member in members))
    units = (f"{topic}/{number}" for topic in sorted(wanted & topics.keys()) for number in range(topics[topic]))
    return tuple(unit for unit in units if unit not in owned)


def _unowned(group: Group) -> Iterable[Trouble]:
    generation_id, units = group.unowned
    if units and generation_id == group.generation_id:
        text = (
            f"{count(len(units), 'partition')} of registered topics without an owner: {listed(units)}. The assignment "
            f"of {group.generation_leader_id} by {group.protocol_name!r} leaves them out."
        )
        yield _trouble(group, TroubleKind.UNOWNED, text, "rebalance", number=len(units))


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
