"""Sessions: how a member shows that it lives, until when the group believes it, and the statistics of that.

A session is a deadline in memory. A heartbeat moves it on; a parked call stops it, because that call itself shows that
the member is there. Nothing of it is journalled: a new owner of the shard starts every session afresh, as Kafka does.

A timer is not moved with the deadline. One that fires early is set again: a heartbeat costs an assignment, no timer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rota.group.apply import record
from rota.group.gaps import GapCount, gap_class
from rota.group.records import SessionStats
from rota.group.result import Result, Timer, TimerKind
from rota.group.state import Group, Member

MemberName = tuple[str, str, str]
"""Namespace, group id, member id."""


def renew_session(result: Result, group: Group, member: Member) -> None:
    """`renew_sessions` of one member."""
    renew_sessions(result, group, (member,))


def renew_sessions(result: Result, group: Group, members: Iterable[Member]) -> None:
    """The members show that they live: count the gap since each last did, and start its session afresh.

    While a call of its is parked, that call shows it. This is the hottest path of all, so it is written out.
    """
    now_ms, seen = result.now_ms, result.seen
    # Members that share a message were last seen together as a rule: their gaps are of one class, and one deadline in
    # memory does for all of them.
    last_gap_ms, number, last_timeout_ms, until_ms = 0, 0, 0, 0
    for member in members:
        deadline_ms = member.session_deadline_ms
        if deadline_ms is None:
            continue
        timeout_ms, gaps = member.image.session_timeout_ms, member.gaps
        gap_ms = now_ms - deadline_ms + timeout_ms
        if gap_ms != last_gap_ms:
            last_gap_ms, number = gap_ms, gap_class(gap_ms)
        if gaps is None:
            gaps = member.gaps = GapCount(now_ms, number)
        if number == gaps.number:
            gaps.in_a_row += 1
        else:
            gaps.begin_row(number)
        if last_gap_ms > gaps.longest_ms:  # noqa: PLR1730 - max() takes longer
            gaps.longest_ms = last_gap_ms
        if timeout_ms != last_timeout_ms:
            last_timeout_ms, until_ms = timeout_ms, now_ms + timeout_ms
        member.session_deadline_ms = until_ms
        armed_ms = member.session_armed_ms
        if armed_ms is None or armed_ms > until_ms:
            _arm(result, group, member, until_ms)
        if seen is not None:
            seen[member] = group


def start_session(result: Result, group: Group, member: Member) -> None:
    """`start_sessions` of one member."""
    start_sessions(result, group, (member,))


def start_sessions(result: Result, group: Group, members: Iterable[Member]) -> None:
    """Start sessions afresh where that is the coordinator's doing, and says nothing of the members' regularity."""
    deadlines: dict[int, int] = {}  # by timeout: a deadline of thousands of members is in memory once
    for member in members:
        timeout_ms = member.image.session_timeout_ms
        deadline_ms = deadlines.setdefault(timeout_ms, result.now_ms + timeout_ms)
        set_session_deadline(result, group, member, deadline_ms)
        if result.seen is not None:
            result.seen[member] = group


def stop_session(result: Result, group: Group, member: Member) -> None:
    """A parked call proves from here on that the member lives."""
    member.session_deadline_ms = None
    if result.seen is not None:
        result.seen[member] = group


def set_session_deadline(result: Result, group: Group, member: Member, deadline_ms: int) -> None:
    """Let the session end then, and see to a timer that fires by then."""
    member.session_deadline_ms = deadline_ms
    armed_ms = member.session_armed_ms
    if armed_ms is None or armed_ms > deadline_ms:
        _arm(result, group, member, deadline_ms)


def _arm(result: Result, group: Group, member: Member, at_ms: int) -> None:
    member.session_armed_ms = at_ms
    result.set_timer(TimerKind.SESSION, group, member.member_id, at_ms)


# --- the end of a session ---------------------------------------------------------------------


def session_is_over(group: Group, timer: Timer, now_ms: int) -> bool:
    """Would this timer expire its member now?"""
    member = group.members.get(timer.member_id)
    return (
        member is not None
        and member.session_armed_ms == timer.at_ms
        and member.session_deadline_ms is not None
        and member.session_deadline_ms <= now_ms
    )


def member_to_expire(result: Result, group: Group, timer: Timer) -> Member | None:
    """The member with the expired session. A stale timer does nothing; an early one is set again."""
    member = group.members.get(timer.member_id)
    if member is None or member.session_armed_ms != timer.at_ms:
        return None
    member.session_armed_ms = None
    deadline_ms = member.session_deadline_ms
    if deadline_ms is None:
        return None
    if deadline_ms > result.now_ms:
        _arm(result, group, member, deadline_ms)
        return None
    return member


# --- between replicas -------------------------------------------------------------------------


def shorten_sessions(
    result: Result,
    groups: Iterable[Group],
    seen_ms_ago: Mapping[MemberName, int],
    grace_ms: int,
    unknown_ms_ago: int | None,
) -> None:
    """Members in `seen_ms_ago` keep the rest of their sessions and `grace_ms`; the others keep their deadlines.

    With `unknown_ms_ago` each of them may have been seen once more, so long ago: no session is shorter than from there.
    """
    for group in groups:
        for member in group.members.values():
            ago_ms = seen_ms_ago.get((group.namespace, group.group_id, member.member_id))
            if ago_ms is not None and member.session_deadline_ms is not None:
                session_ms = member.image.session_timeout_ms
                left_ms = max(0, session_ms - ago_ms) + grace_ms
                if unknown_ms_ago is not None:
                    left_ms = max(left_ms, session_ms - unknown_ms_ago)
                deadline_ms = min(member.session_deadline_ms, result.now_ms + left_ms)
                set_session_deadline(result, group, member, deadline_ms)


def extend_session(member: Member, seen_ms_ago: int, now_ms: int) -> None:
    """Another replica saw the member so long ago."""
    if member.session_deadline_ms is not None:
        seen_until_ms = now_ms - seen_ms_ago + member.image.session_timeout_ms
        member.session_deadline_ms = max(member.session_deadline_ms, seen_until_ms)


def last_seen(seen: Mapping[Member, Group]) -> dict[MemberName, int | None]:
    """When each session last began, by the member's name; None while a parked call proves that the member lives."""
    return {
        (group.namespace, group.group_id, member.member_id): _seen_at_ms(member)
        for member, group in seen.items()
        if group.members.get(member.member_id) is member
    }


def _seen_at_ms(member: Member) -> int | None:
    deadline_ms = member.session_deadline_ms
    return None if deadline_ms is None else deadline_ms - member.image.session_timeout_ms


# --- how regularly members are seen -----------------------------------------------------------


def report_gaps(result: Result, group: Group, members: Iterable[Member]) -> None:
    """One journal entry for all these members, if any was seen since the last; their counts start anew."""
    reported = []
    for member in members:
        gaps, member.gaps = member.gaps, None
        if gaps is not None:
            member.longest_gap_ms = gaps.longest_ms
            image, counted = member.image, tuple(sorted(gaps.classes.items()))
            reported.append(
                (image.member_id, image.client_id, image.session_timeout_ms, gaps.since_ms, gaps.longest_ms, counted)
            )
    if reported:
        record(result, group, SessionStats(tuple(reported)))


def due_gaps(group: Group, now_ms: int, interval_ms: int) -> list[Member]:
    """The members with gaps counted for this long; none where the interval is 0."""
    if not interval_ms:
        return []
    return [m for m in group.members.values() if m.gaps is not None and now_ms - m.gaps.since_ms >= interval_ms]
