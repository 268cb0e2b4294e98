"""What a history says, told naively: the core is replayed line by line, and its state is looked at before and after.

It shares nothing with the folds but the journal. It keeps every state that ever was, so it is slow and obviously right.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from rota.group.journal import decode_entry
from rota.group.shard import Shard
from rota.pipeline.events import Line
from rota.protocol.limits import Limits

DEAD = "Dead"


@dataclass(frozen=True)
class Seen:
    """A group at one moment."""

    state: str = ""
    """Empty before the group was first heard of."""
    members: tuple[str, ...] = ()
    leader_id: str = ""
    holders: dict[str, set[str]] = field(default_factory=dict)
    """Who holds each unit."""


class Step(NamedTuple):
    """A line, and the group before it, after a new owner has forgotten what was not settled, and after the line."""

    line: Line
    before: Seen
    found: Seen
    after: Seen


def steps(lines: Iterable[Line]) -> Iterator[Iterator[Step]]:
    """The lines of each group, with what they did. The lines come group by group and in order."""
    for (shard_id, _, group_id), of_group in groupby(lines, key=lambda x: (x.shard_id, x.namespace, x.group_id)):
        if group_id:
            yield _steps(Shard(shard_id, Limits()), of_group)


def _steps(shard: Shard, lines: Iterable[Line]) -> Iterator[Step]:
    before, epoch = Seen(), 0
    for line in lines:
        if line.epoch != epoch:
            shard.forget_unsettled()
        epoch = line.epoch
        found = _seen(shard, line, before)
        named = {name: getattr(line, name) for name in ("at_ms", "namespace", "group_id", "generation_id", "kind")}
        shard.replay(decode_entry({**named, "reason": line.reason, "payload": json.loads(line.payload)}))
        after = _seen(shard, line, found)
        yield Step(line, before, found, after)
        before = after


def _seen(shard: Shard, line: Line, before: Seen) -> Seen:
    group = shard.groups.get((line.namespace, line.group_id))
    if group is None:
        return Seen(DEAD if before.state else "")
    holders: dict[str, set[str]] = {}
    for member in group.members.values():
        for unit in filter(None, member.assignment.decode().split(",")):
            holders.setdefault(unit, set()).add(member.member_id)
    return Seen(group.state.value, tuple(group.members), group.generation_leader_id or "", holders)


# --- answers ----------------------------------------------------------------------------------------


def time_in_states(steps_of_group: Iterable[Step]) -> Counter[str]:
    """Milliseconds that a group spent in each state, up to its last line."""
    spent: Counter[str] = Counter()
    state, since_ms, at_ms = "", 0, 0
    for line, _, found, after in steps_of_group:
        at_ms = line.at_ms
        for seen in (found, after):
            if seen.state != state:
                spent[state] += max(0, at_ms - since_ms)
                state, since_ms = seen.state, at_ms
    spent[state] += max(0, at_ms - since_ms)
    del spent[""]
    return +spent


def presences(steps_of_group: Iterable[Step]) -> Counter[tuple[str, int, int | None]]:
    """Who was a member from when to when (ms); without an end for those who still are."""
    since: dict[str, int] = {}
    over: Counter[tuple[str, int, int | None]] = Counter()
    for line, _, found, after in steps_of_group:
        for seen in (found, after):
            for member_id in since.keys() - set(seen.members):
                over[member_id, since.pop(member_id), line.at_ms] += 1
            for member_id in seen.members:
                since.setdefault(member_id, line.at_ms)
    over.update((member_id, from_ms, None) for member_id, from_ms in since.items())
    return over


def leaderships(steps_of_group: Iterable[Step]) -> Counter[tuple[str, int, int | None]]:
    """Who led from when to when (ms)."""
    led: Counter[tuple[str, int, int | None]] = Counter()
    leader_id, since_ms = "", 0
    for line, _, found, after in steps_of_group:
        for seen in (found, after):
            if seen.leader_id != leader_id:
                led[leader_id, since_ms, line.at_ms] += bool(leader_id)
                leader_id, since_ms = seen.leader_id, line.at_ms
    led[leader_id, since_ms, None] += bool(leader_id)
    return +led


def assigned(steps_of_group: Iterable[Step]) -> list[tuple[int, int, int, int]]:
    """For each assignment: members, units, units that moved, units taken from who stayed."""
    rows = []
    last: dict[str, set[str]] = {}
    for line, _, _, after in steps_of_group:
        if line.kind == "member_fenced":
            old_id, new_id = json.loads(line.payload)["member_id"], json.loads(line.payload)["new_member_id"]
            last = {unit: {new_id if m == old_id else m for m in held} for unit, held in last.items()}
        if line.kind in ("group_emptied", "group_deleted"):
            last = {}
        if line.kind == "assignment_synced":
            moved = sum(unit in last and not held <= last[unit] for unit, held in after.holders.items())
            stay = set(after.members)
            revoked = sum(len((held & stay) - after.holders.get(unit, set())) for unit, held in last.items())
            units = sum(map(len, after.holders.values()))
            rows.append((len(after.members), units, moved, revoked))
            last = after.holders
    return rows


def fenced(lines: Iterable[Line]) -> Counter[tuple[str, str, str, int]]:
    """How often whose requests of which operation were refused, by hour (ms)."""
    found: Counter[tuple[str, str, str, int]] = Counter()
    for line in lines:
        if line.kind == "request_fenced":
            payload = json.loads(line.payload)
            found[payload["member_id"], payload["operation"], payload["error"], line.at_ms // 3_600_000] += 1
    return found
