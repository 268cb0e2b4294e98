"""Telling the journal how regularly members are heard: when one goes, and of all every few minutes."""

from __future__ import annotations

from collections.abc import Iterable

from rota.group.records import SessionStats
from rota.group.result import Result
from rota.group.state import Group, Member


def report_gaps(result: Result, group: Group, members: Iterable[Member]) -> None:
    """One line for all these members, if any was heard since the last; they are counted anew from here on."""
    told = []
    for member in members:
        gaps, member.gaps = member.gaps, None
        if gaps is not None:
            image = member.image
            counted = tuple(sorted(gaps.classes.items()))
            told.append(
                (
                    image.member_id,
                    image.client_id,
                    image.session_timeout_ms,
                    gaps.since_ms,
                    gaps.longest_ms,
                    counted,
                )
            )
    if told:
        result.record(group, SessionStats(tuple(told)))


def due_gaps(group: Group, now_ms: int, interval_ms: int) -> list[Member]:
    """The members of whom something was counted for so long; nobody where the interval is 0."""
    if not interval_ms:
        return []
    return [m for m in group.members.values() if m.gaps is not None and now_ms - m.gaps.since_ms >= interval_ms]
