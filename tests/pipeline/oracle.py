"""The facts of a history, computed naively: the core is replayed line by line, with its state before and after.

It shares nothing with the folds but the journal. It keeps every state that ever was, so it is slow and obviously right.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise
from math import ceil
from statistics import pstdev
from typing import NamedTuple

from rota.core.group.records import class_end_ms, decode_entry
from rota.core.group.shard import Shard
from rota.pipeline.tables import Line
from rota.protocol.limits import Limits

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True)
class Seen:
    """A group at one moment."""

    state: str = ""
    """Empty before the group's first line."""
    members: tuple[str, ...] = ()
    leader_id: str = ""
    holders: dict[str, set[str]] = field(default_factory=dict)
    """The holder of each unit."""


class Step(NamedTuple):
    """A line, and the group before it, after a new owner has dropped its soft state, and after the line."""

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
        for unit in filter(None, member.assignment.decode(errors="replace").split(",")):
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


class Attempt(NamedTuple):
    """To get to another generation: its number where there was one, from when to when (ms), and what became of it."""

    since_ms: int
    generation_id: int | None = None
    joined_ms: int | None = None
    until_ms: int | None = None
    outcome: str = ""

    def became(self, outcome: str, at_ms: int) -> Attempt:
        return self._replace(outcome=outcome, until_ms=at_ms)


def attempts(steps_of_group: Iterable[Step]) -> list[Attempt]:
    """By the states that the group went through, in the order in which they began."""
    tried: list[Attempt] = []
    former: Line | None = None
    for line, before, found, after in steps_of_group:
        at_ms, way = line.at_ms, (found.state, after.state)
        if before.state == PREPARING and found.state != PREPARING:
            tried[-1] = tried[-1].became("forgotten", at_ms)
            if found.state == COMPLETING:
                # What the forgotten one had interrupted goes on.
                tried.append(tried.pop(-2)._replace(outcome="", until_ms=None))
        if found.state == COMPLETING and after.state in (PREPARING, EMPTY):
            tried[-1] = tried[-1].became(_interruption(former), at_ms)
        if after.state == PREPARING != found.state:
            tried.append(Attempt(at_ms))
        if way == (PREPARING, COMPLETING):
            tried[-1] = tried[-1]._replace(joined_ms=at_ms, generation_id=_generation_id(line))
        if way == (COMPLETING, STABLE):
            tried[-1] = tried[-1].became("assigned", at_ms)
        if line.kind == "assignment_synced" and way == (STABLE, STABLE):
            tried.append(Attempt(at_ms, _generation_id(line)).became("reassigned", at_ms))
        if found.state in (COMPLETING, STABLE) and after.state == EMPTY:
            tried.append(Attempt(at_ms))
        if line.kind == "group_emptied":
            tried[-1] = tried[-1]._replace(generation_id=_generation_id(line)).became("emptied", at_ms)
        former = line
    return tried


def causes(steps_of_group: Iterable[Step]) -> Counter[tuple[int, str]]:
    """When (ms) rebalances began, and why: in the words of the report, by what else happened at that moment."""
    began: Counter[tuple[int, str]] = Counter()
    moment: list[Line] = []
    for line, _, found, after in steps_of_group:
        moment = [each for each in moment if (each.epoch, each.at_ms) == (line.epoch, line.at_ms)]
        if line.kind == "rebalance_started" or (found.state in (COMPLETING, STABLE) and after.state == EMPTY):
            began[line.at_ms, _cause(line, moment, found)] += 1
        if line.kind != "offsets_committed":
            moment.append(line)
    return began


def _cause(line: Line, moment: list[Line], found: Seen) -> str:
    last = moment[-1].kind if moment else ""
    if not last and line.reason.endswith("; held back until the freeze ended"):
        return "topics_changed" if line.reason.startswith("the topics changed") else "leader_rejoined"
    if any(each.kind == "member_fenced" for each in moment[-2:]):
        return "static_member_returned"
    if last in ("", "member_updated") and found.state == STABLE and json.loads(line.payload)["by"] == found.leader_id:
        # A leader that joins again as it was has no line of its own, nor has one that assigns to a member that is gone.
        if "assigned to" in line.reason or "may not know of its first assignment" in line.reason:
            return "assignment_outdated"
        return "topics_changed" if "; client reason: the topics changed" in line.reason else "leader_rejoined"
    if last == "member_expired":
        return "sync_timeout" if "did not sync" in moment[-1].reason else "member_expired"
    return "metadata_changed" if last == "member_updated" else last


def _interruption(former: Line | None) -> str:
    """By what the group's line before says."""
    if former is not None and former.kind == "assignment_failed":
        return "assignment_failed"
    late = former is not None and former.kind == "member_expired" and "did not sync" in former.reason
    return "timed_out" if late else "superseded"


def _generation_id(line: Line) -> int:
    return int(json.loads(line.payload)["generation_id"])


def generations(steps_of_group: Iterable[Step]) -> list[tuple[int, int, int, str]]:
    """Each generation's number, the members of the one before and its own, and its leader."""
    found, before = [], 0
    for line, _, _, after in steps_of_group:
        if line.kind in ("generation_completed", "group_emptied"):
            found.append((_generation_id(line), before, len(after.members), after.leader_id))
            before = len(after.members)
        if line.kind == "group_deleted":
            before = 0
    return found


def presences(steps_of_group: Iterable[Step]) -> Counter[tuple[str, int, int | None]]:
    """The sessions of members, from when to when (ms); without an end for those that are still members."""
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


def flapping(steps_of_group: Iterable[Step]) -> Counter[tuple[str, int, int, int, int]]:
    """The departures (ms); and of the client's sessions of that hour: how many, how many began in it, the median."""
    since: dict[str, int] = {}
    client_of: dict[str, str] = {}
    sessions: list[tuple[int, str, int, int]] = []
    rows: Counter[tuple[str, int, int, int, int]] = Counter()
    for line, _, found, after in steps_of_group:
        payload = json.loads(line.payload)
        if line.kind in ("member_joined", "member_updated"):
            member = payload["member"]
            client_of[member["member_id"]] = member["group_instance_id"] or member["client_id"]
        if line.kind == "member_fenced":
            client_of[payload["new_member_id"]] = client_of[payload["member_id"]]
        for seen in (found, after):
            for member_id in [each for each in since if each not in seen.members]:
                from_ms = since.pop(member_id)
                now_ms = max([line.at_ms, *(ended_ms for ended_ms, *_ in sessions)])
                sessions.append((now_ms, client_of[member_id], from_ms, max(0, line.at_ms - from_ms)))
                of_hour = [x for x in sessions if x[1] == client_of[member_id] and x[0] > now_ms - HOUR_MS]
                short = [began_ms for _, _, began_ms, _ in of_hour if began_ms > now_ms - HOUR_MS]
                middle = sorted(ms for *_, ms in of_hour)[ceil(len(of_hour) / 2) - 1]
                rows[member_id, line.at_ms, len(of_hour), len(short), middle] += 1
            for member_id in seen.members:
                since.setdefault(member_id, line.at_ms)
    return rows


class Tenure(NamedTuple):
    """The terms of leaders (ms), how long none had led before, and how many join phases ended with each."""

    leader_id: str
    from_ms: int
    to_ms: int | None
    gap_ms: int | None
    generations: int


def leaderships(steps_of_group: Iterable[Step]) -> list[Tenure]:
    """In the order in which they began; two of one leader in a row where it had gone meanwhile."""
    led: list[Tenure] = []
    leader_id = ""
    for line, _, found, after in steps_of_group:
        for seen in (found, after):
            if leader_id and seen.leader_id != leader_id:
                led[-1] = led[-1]._replace(to_ms=line.at_ms)
            if seen.leader_id not in ("", leader_id):
                gone_ms = led[-1].to_ms if led else None
                gap_ms = None if gone_ms is None else max(0, line.at_ms - gone_ms)
                led.append(Tenure(seen.leader_id, line.at_ms, None, gap_ms, 0))
            leader_id = seen.leader_id
        if line.kind == "generation_completed":
            led[-1] = led[-1]._replace(generations=led[-1].generations + 1)
    return led


def assigned(steps_of_group: Iterable[Step]) -> list[tuple[int, int, int, int, int, float]]:
    """For each assignment: members, units, units whose last holder was another, of these those of a holder that had
    gone, units taken from members that stay, and the spread of the shares.
    """
    rows = []
    past: list[dict[str, set[str]]] = []
    for line, _, _, after in steps_of_group:
        payload = json.loads(line.payload)
        if line.kind == "member_fenced":
            old_id, new_id = payload["member_id"], payload["new_member_id"]
            past = [{unit: {new_id if m == old_id else m for m in held} for unit, held in p.items()} for p in past]
        if line.kind in ("group_emptied", "group_deleted"):
            past = []
        if line.kind == "generation_completed":
            # Where units are withheld until they are given up, some assignments may pass before they have a holder.
            reach = 1 if payload["protocol_name"].startswith("server:") else 4
        if line.kind == "assignment_synced":
            former = past[-1] if past else {}
            last = {unit: held for holders in past[-reach:] for unit, held in holders.items()}
            moved = [unit for unit, held in after.holders.items() if unit in last and not held <= last[unit]]
            stay = set(after.members)
            forced = sum(not last[unit] <= stay for unit in moved)
            revoked = sum(len((held & stay) - after.holders.get(unit, set())) for unit, held in former.items())
            units = sum(map(len, after.holders.values()))
            spread = pstdev([sum(member in held for held in after.holders.values()) for member in after.members])
            rows.append((len(after.members), units, len(moved), forced, revoked, spread))
            past.append(after.holders)
    return rows


def fenced(lines: Iterable[Line]) -> Counter[tuple[str, str, str, int]]:
    """How often requests of which member and operation were refused, by hour (ms)."""
    found: Counter[tuple[str, str, str, int]] = Counter()
    for line in lines:
        if line.kind == "request_fenced":
            payload = json.loads(line.payload)
            found[payload["member_id"], payload["operation"], payload["error"], line.at_ms // HOUR_MS] += 1
    return found


def progress(lines: Iterable[Line]) -> Counter[tuple[str, int, int, int, int, int, int, int]]:
    """For each partition and hour: commits, the first and the last offset, the longest wait (ms), and steps back."""
    runs: dict[tuple[str, int], list[list[tuple[int, int]]]] = {}
    for line in lines:
        payload = json.loads(line.payload)
        if line.kind == "offsets_committed":
            for topic, partition, offset, *_ in payload["offsets"]:
                runs.setdefault((topic, partition), [[]])[-1].append((line.at_ms, offset))
        if line.kind == "offsets_deleted":
            for topic, partition in payload["partitions"]:
                runs.setdefault((topic, partition), [[]]).append([])
        if line.kind == "group_deleted":
            for run in runs.values():
                run.append([])
    return Counter((*key, *hour) for key, of_partition in runs.items() for run in of_partition for hour in _hours(run))


def _hours(commits: list[tuple[int, int]]) -> Iterator[tuple[int, int, int, int, int, int]]:
    steps_ = pairwise([*commits[:1], *commits])
    for hour, of_hour in groupby(steps_, key=lambda step: step[1][0] // HOUR_MS):
        taken = list(of_hour)
        offsets = [offset for _, (_, offset) in taken]
        waited_ms = max(0, *(at_ms - before_ms for (before_ms, _), (at_ms, _) in taken))
        back = sum(offset < before for (_, before), (_, offset) in taken)
        yield hour, len(taken), offsets[0], offsets[-1], waited_ms, back


def heartbeat_rows(lines: Iterable[Line]) -> Counter[tuple[str, int, int, int | None, int | None, int | None]]:
    """Of each of the journal's statistics: whose, until when (ms), how many gaps, and half, 99 % and 99.9 % of them."""
    found: Counter[tuple[str, int, int, int | None, int | None, int | None]] = Counter()
    for line in lines:
        if line.kind == "session_stats":
            for member_id, _, _, _, _, counted in json.loads(line.payload)["members"]:
                gaps = sorted(class_end_ms(number) for number, count in counted for _ in range(count))
                longest = [gaps[ceil(len(gaps) * share) - 1] if gaps else None for share in (0.5, 0.99, 0.999)]
                found[member_id, line.at_ms, len(gaps), longest[0], longest[1], longest[2]] += 1
    return found


def advised(lines: Iterable[Line]) -> list[tuple[int, int, int | None, float, float | None]]:
    """By all that was counted up to the last of a day: when that came (ms), the session timeout and the one to
    recommend, and how many false expiries a member and day either comes to.
    """
    said: list[Line] = []
    late: list[tuple[int, int]] = []
    lost: list[tuple[str, int, int]] = []
    known: dict[str, tuple[str, int]] = {}
    lives = 0
    by_day = {}
    for line in lines:
        payload, counted = json.loads(line.payload), len(said) + len(late)
        if line.kind == "group_deleted":
            said, late, lost, lives = [], [], [], lives + 1
        if line.kind == "session_stats":
            said.append(line)
        if line.kind in ("member_joined", "member_updated"):
            member = payload["member"]
            client = member["group_instance_id"] or member["client_id"] + " on " + member["host"]
            known[member["member_id"]] = (client, member["session_timeout_ms"])
        if line.kind == "member_fenced" and payload["member_id"] in known:
            known[payload["new_member_id"]] = known[payload["member_id"]]
        if line.kind == "member_expired" and "no heartbeat" in line.reason and payload["member_id"] in known:
            client, timeout_ms = known[payload["member_id"]]
            lost.append((client, line.at_ms, timeout_ms))
        if line.kind == "member_joined":
            client, _ = known[payload["member"]["member_id"]]
            soon = [x for x in lost if x[0] == client and max(0, line.at_ms - x[1]) <= max(10_000, x[2])]
            if soon:
                lost.remove(soon[-1])
                late.append((line.at_ms, soon[-1][2] + max(1, line.at_ms - soon[-1][1])))
        if len(said) + len(late) > counted:
            at_ms = max([each.at_ms for each in said] + [each_ms for each_ms, _ in late])
            by_day[lives, at_ms // DAY_MS] = (at_ms, said[:], [silence_ms for _, silence_ms in late])
    return [(at_ms, *_advice(until_then, silences)) for at_ms, until_then, silences in by_day.values() if until_then]


def _advice(said: list[Line], late: list[int]) -> tuple[int, int | None, float, float | None]:
    members = [(line.at_ms, *member) for line in said for member in json.loads(line.payload)["members"]]
    days = max(1, sum(max(0, at_ms - since_ms) for at_ms, _, _, _, since_ms, *_ in members)) / DAY_MS
    classes = [number for *_, counted in members for number, count in counted for _ in range(count)]
    longest = max((longest_ms for *_, longest_ms, _ in members), default=0)
    today = max(session_ms for _, _, session_ms, *_ in json.loads(said[-1].payload)["members"])
    lengths = [_written(silence) for silence in late]

    def false(timeout: int) -> float:
        above = 0.0
        for number in classes:
            # Of the lengths that the class holds, up to the longest gap, this part is longer.
            held = range(class_end_ms(number - 1) + 1 if number else 0, min(class_end_ms(number), longest) + 1)
            above += len(held[max(0, timeout + 1 - held.start) :]) / max(1, len(held))
        return 0.0 if timeout >= max([longest, *late]) else (above + sum(n > timeout for n in lengths)) / days

    if len(classes) < 500 and not late:
        return today, None, false(today), None
    tried = sorted({min(class_end_ms(number), longest) for number in classes} | set(lengths))
    enough = next((each + 1 for each in tried if false(each) <= 0.01), 1_000)
    wanted = _written(max(1_000, int(1.5 * enough)))
    return today, wanted, false(today), false(wanted)


def _written(timeout_ms: int) -> int:
    steps_ = (range(0, 10_000, 500), range(10_000, 60_000, 1_000), range(60_000, 10**9, 5_000))
    return next(each for each in chain(*steps_) if each >= timeout_ms)


def owners(lines: Iterable[Line]) -> list[tuple[int, str, str, int | None]]:
    """The owner that took this shard, in which epoch, from which one, and how long after its release (ms)."""
    of_shard = [line for line in lines if line.kind in ("shard_acquired", "shard_released")]
    found, owner = [], ""
    for before, line in pairwise([None, *of_shard]):
        if line is not None and line.kind == "shard_acquired":
            released = before is not None and before.kind == "shard_released"
            gap_ms = max(0, line.at_ms - before.at_ms) if before is not None and released else None
            found.append((line.epoch, owner, json.loads(line.payload)["replica_id"], gap_ms))
            owner = found[-1][2]
    return found
