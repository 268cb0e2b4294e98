"""One group: its explanation, state, members, assignment, rebalance history, and leaders."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any

from rota.core.types.registry import readable_assignment, subscribes
from rota.protocol.errors import RejectedRequest
from rota.protocol.ids import shard_of
from rota.protocol.messages import DescribedMember, DescribeReply, ListedTopic
from rota.protocol.troubles import TroubleKind
from rota.protocol.wording import count
from rota.server.console.backend import QUIET, Asked, Backend, Described
from rota.server.console.drawing import axis_of, draw
from rota.server.console.rendering import segment, utc
from rota.server.console.shares import Unit, in_words, moves, share_map, units_of
from rota.server.observability.explanation import explain, seen_ms_ago
from rota.server.observability.generations import Event, Generation, generations

_LINES = 400
_ALL_LINES = 2_000
_LATEST = 6
MOST_MEMBERS_SHOWN = 100
"""Maximum number of displayed members: a page that is refreshed with each change must be cheap."""


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A displayed member. `left_ms` is None while a call of it waits, which proves that it is alive."""

    member: DescribedMember
    leads: bool
    left_ms: int | None
    seen_ms_ago: int | None
    holds: str
    held: int | None

    @property
    def tone(self) -> str:
        if self.left_ms is None:
            return "calm"
        share = self.left_ms / max(1, self.member.session_timeout_ms)
        return "waiting" if share < 1 / 3 else "busy" if share < 1 / 2 else "calm"


@dataclass(frozen=True, slots=True)
class Chapter:
    """A generation with the number of moves since the previous one."""

    generation: Generation
    moved: int | None
    held_for_ms: int | None


@dataclass(frozen=True, slots=True)
class Reign:
    """A leader's time: from the generation in which it started to lead to the one in which another member did."""

    leader_id: str
    first_generation: int
    last_generation: int
    since_ms: int
    until_ms: int | None
    why: str


async def group_page(asked: Asked) -> dict[str, Any]:
    backend, namespace = asked.backend, asked.namespace
    described = await backend.describe(namespace, asked.name)
    events = (await backend.history(described, _LINES)).events
    story = generations(events)
    now_ms = backend.now_ms()
    group = described.group
    listed = _listed(group, show_all="show_all" in asked.parameters)
    shares, former = _latest_shares(group, story)
    drawn = share_map(group.protocol_type, shares, former, await _divided(backend, namespace, group))
    return {
        **common_values(asked, described, now_ms),
        "explanation": explain(group, now_ms, events, utc),
        "rows": [member_row(group, member, now_ms) for member in listed],
        "map": drawn,
        "drawing": draw(drawn) if drawn is not None and drawn.units else None,
        "in_words": in_words,
        "chapters": chapters(group.protocol_type, story, now_ms)[:_LATEST],
        "chapter_count": len(story),
    }


async def timeline_page(asked: Asked) -> dict[str, Any]:
    """Show the generations and the lines of the journal, the latest first; below the revision `before`, if the URL has
    one.

    Commits and statistics of heartbeats are omitted unless the URL requests them: they would hide other lines.
    """
    backend, parameters = asked.backend, asked.parameters
    described = await backend.describe(asked.namespace, asked.name)
    commits, text = "commits" in parameters, parameters.get("before", "")
    before = int(text) if text.isdecimal() and len(text) < 19 else None
    but_for = frozenset[str]() if commits else QUIET
    history = await backend.history(described, _ALL_LINES, before=before, but_for=but_for)
    events, now_ms = history.events, backend.now_ms()
    story = generations(events)
    shown = list(reversed(events))[:_LINES]
    is_last = len(shown) == len(events) and len(events) < _ALL_LINES
    return {
        **common_values(asked, described, now_ms),
        "chapters": chapters(described.group.protocol_type, story, now_ms),
        "axis": axis_of(story, now_ms) if before is None else None,
        "events": shown,
        "first_revision": history.first_revision,
        "commits": commits,
        "newer": before is not None,
        "older_than": shown[-1]["revision"] if shown and not is_last else None,
    }


async def leader_page(asked: Asked) -> dict[str, Any]:
    backend = asked.backend
    described = await backend.describe(asked.namespace, asked.name)
    group, now_ms = described.group, backend.now_ms()
    history = await backend.history(described, _ALL_LINES)
    terms = reigns(generations(history.events))
    leader = next((member for member in group.members if member.member_id == group.leader_id), None)
    current = terms[0] if terms and leader and terms[0].leader_id == leader.member_id else None
    return {
        **common_values(asked, described, now_ms),
        "leader": leader and member_row(group, leader, now_ms),
        "reign": current,
        "waiting": [member for member in group.members if member is not leader][:MOST_MEMBERS_SHOWN],
        "reigns": terms,
        "first_revision": history.first_revision,
    }


def chapters(protocol_type: str, story: Sequence[Generation], now_ms: int) -> list[Chapter]:
    """Return the generations with their moves, the newest first."""
    found: list[Chapter] = []
    before: Mapping[str, bytes] = {}
    for number, generation in enumerate(story):
        moved = moves(protocol_type, generation.assignments, before) if generation.assignments and before else None
        ended_ms = story[number + 1].started_at_ms if number + 1 < len(story) else now_ms
        began_ms = generation.assigned_at_ms or generation.completed_at_ms
        held_for_ms = None if began_ms is None or ended_ms is None else max(0, ended_ms - began_ms)
        found.append(Chapter(generation, moved, held_for_ms))
        before = generation.assignments or before
    return found[::-1]


def reigns(story: Sequence[Generation]) -> list[Reign]:
    """Return the leaders, the latest first; a generation without a leader ends a reign."""
    found: list[Reign] = []
    for generation in story:
        at_ms = generation.completed_at_ms
        if at_ms is None:
            continue
        last = found[-1] if found else None
        if last is not None and last.until_ms is None:
            if last.leader_id == generation.leader_id:
                found[-1] = replace(last, last_generation=generation.generation_id)
                continue
            found[-1] = replace(last, until_ms=at_ms)
        if generation.leader_id:
            number = generation.generation_id
            found.append(Reign(generation.leader_id, number, number, at_ms, None, generation.reason))
    return found[::-1]


def common_values(asked: Asked, described: Described, now_ms: int) -> dict[str, Any]:
    """Return the values of all pages of a group."""
    backend, namespace, group = asked.backend, described.namespace, described.group
    rota, url, name = command_parts(asked.base_url, namespace, group.group_id)
    commands = (
        ("why, in words", f"{rota} why {name}"),
        ("describe", f"{rota} describe {name}"),
        ("follow", f"{rota} watch {name}"),
        ("describe, with curl", f"curl -s {quote(url)}"),
        ("follow, with curl", f"curl -sN {quote(url + '/events')}"),
        ("wait for another leader", f"curl -s {quote(url + '/leader?wait_ms=30000')}"),
    )
    return {
        "namespace": namespace,
        "group": group,
        "revision": described.revision,
        "owner": backend.owner_of(namespace, group.group_id),
        "shard_id": shard_of(namespace, group.group_id, backend.shard_count),
        "now_ms": now_ms,
        "commands": commands,
        "refusals": refusals(group, now_ms),
    }


def command_parts(base_url: str, namespace: str, group_id: str) -> tuple[str, str, str]:
    """Return the start of a `rota groups` command, the group's URL, and its name for a shell."""
    option = "" if namespace == "default" else f" --namespace {quote(namespace)}"
    url = f"{base_url}/v1/namespaces/{segment(namespace)}/groups/{segment(group_id)}"
    return f"rota --url {quote(base_url)}{option} groups", url, quote(group_id)


def refusals(group: DescribeReply, now_ms: int) -> dict[str, str]:
    """Return why each action cannot be done now; empty if it can. The coordinator decides finally."""
    empty = "it has no members" if not group.members else ""
    is_frozen = group.frozen_until_ms is not None and group.frozen_until_ms > now_ms
    frozen = "it is frozen" if is_frozen else ""
    leaderless = empty or ("" if group.leader_id else "it has no leader now")
    alone = "no other member could lead" if len(group.members) < 2 else ""
    return {
        "rebalance": empty or frozen,
        "freeze": empty or frozen,
        "unfreeze": "" if is_frozen else "it is not frozen",
        "release": "" if group.quarantined else "no unit is quarantined",
        "step-down": leaderless or frozen or alone,
        "evict": empty,
        "delete": "" if group.state == "Empty" else f"it has {count(len(group.members), 'member')}: it must be empty",
    }


def _listed(group: DescribeReply, *, show_all: bool) -> Sequence[DescribedMember]:
    """Return the members in the order of their joins; of very many only the leader and the awaited or longest silent
    ones.
    """
    if show_all or len(group.members) <= MOST_MEMBERS_SHOWN:
        return group.members

    def urgency(member: DescribedMember) -> tuple[bool, bool, int]:
        return member.member_id != group.leader_id, not member.awaited, member.session_deadline_ms or sys.maxsize

    return sorted(group.members, key=urgency)[:MOST_MEMBERS_SHOWN]


def member_row(group: DescribeReply, member: DescribedMember, now_ms: int) -> MemberRow:
    deadline_ms = member.session_deadline_ms
    units = units_of(group.protocol_type, member.assignment)
    return MemberRow(
        member,
        member.member_id == group.leader_id,
        None if deadline_ms is None else max(0, deadline_ms - now_ms),
        seen_ms_ago(member, now_ms),
        _holds(group, member),
        None if units is None else len(units),
    )


def _holds(group: DescribeReply, member: DescribedMember) -> str:
    """Return a member's share in units if its type has them, otherwise as its type reads it, otherwise its size."""
    units = units_of(group.protocol_type, member.assignment)
    if units is not None:
        return in_words(units)
    decoded = readable_assignment(group.protocol_type, member.assignment)
    if decoded is not None and "leader_id" in decoded:
        return "the leadership" if decoded["leader_id"] == member.member_id else ""
    if decoded is not None:
        return ", ".join(f"{name} {value}" for name, value in decoded.items() if value not in ("", None))
    return f"a share of {count(len(member.assignment), 'byte')}"


def _latest_shares(group: DescribeReply, story: Sequence[Generation]) -> tuple[dict[str, bytes], Mapping[str, bytes]]:
    """Return the assignment of a Stable group, or the last one of any other; and the one before it."""
    assigned = [one for one in story if one.assignments]
    if group.state == "Stable":
        before = [one for one in assigned if one.generation_id < group.generation_id]
        return {one.member_id: one.assignment for one in group.members}, before[-1].assignments if before else {}
    if not assigned:
        return {}, {}
    return dict(assigned[-1].assignments), assigned[-2].assignments if len(assigned) > 1 else {}


async def _divided(backend: Backend, namespace: str, group: DescribeReply) -> Collection[Unit]:
    """Return the partitions that the members should share, if one of them has no owner."""
    if not any(trouble.kind == TroubleKind.UNOWNED for trouble in group.troubles):
        return ()
    try:
        topics = await backend.list_topics(namespace)
    except RejectedRequest:  # The caller may read this group, but no topics.
        return ()
    return await asyncio.to_thread(_subscribed, group, topics)


def _subscribed(group: DescribeReply, topics: Sequence[ListedTopic]) -> set[Unit]:
    wants = {member.metadata for member in group.members}
    wanted = [topic for topic in topics if any(subscribes(group.protocol_type, each, topic.topic) for each in wants)]
    units = {(topic.topic, number) for topic in wanted for number in range(topic.partitions)}
    return {(topic, number) for topic, number in units if f"{topic}/{number}" not in group.quarantined}


def as_lines(events: Sequence[Event]) -> list[Event]:
    """Return journal events in the form of `/v1/events`, for the download."""
    keys = ("revision", "epoch", "at_ms", "namespace", "group_id", "generation_id", "kind", "reason", "payload")
    return [{key: event[key] for key in keys} for event in events]
