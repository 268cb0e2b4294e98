"""A simulated world as a trace of docs/model: the events of one group, one after the other, for TLC to check.

`python -m tests.model.trace --seed 7 [--mutant NAME]` plays the world of a seed and checks each of its groups.
"""

from __future__ import annotations

import argparse
import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import nullcontext

from rota.core.group import records as r
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import generation_of
from rota.protocol.ids import shard_of
from rota.protocol.messages import CommitOffsets, CommitReply, JoinReply, SyncGroup, SyncReply
from tests.model.specification import JOURNAL_RULES, trace_configuration
from tests.simulation.history import Call, GroupKey, Landed
from tests.simulation.member import TOPIC, decode_share
from tests.simulation.mutants import MUTANTS
from tests.simulation.profiles import PROFILES, Profile
from tests.simulation.world import World
from tests.support.tlc import Verdict, check

Event = dict[str, object]
_NONE = ErrorCode.NONE
# Events at the same position of the journal: an answer belongs to the line that it reflects, so it comes first.
_ANSWER, _LATER, _EARLY = 1, 2, 3
_OTHER: Event = {"call": "other"}
"""An answer of which only the revision and the epoch count."""


class Recording:
    """The events of one group, in the order in which a spectator of the store sees them.

    A line is an event of its own, at the position that its sequence number gives it. An answer comes right after the
    line whose revision it shows, or, if it was received before that line landed, where the journal stood then.
    """

    def __init__(self, world: World, group: GroupKey, shard_id: int) -> None:
        self._history = world.history
        self._group = group
        self._shard_id = shard_id
        self._lines = self._history.journal[shard_id]
        self._landed_ms = [line.landed_ms for line in self._lines]
        calls = [call for call in self._history.calls if _group_of(call) == group]
        self._answers = [call for call in self._history.calls if call.epoch and call.shard_id == shard_id]
        self._syncs = [call for call in calls if isinstance(call.request, SyncGroup) and call.request.assignments]
        self._commits = {
            call.request.offsets[0].metadata: call for call in calls if isinstance(call.request, CommitOffsets)
        }

    def events(self) -> list[Event]:
        """All events; the sort is stable, so events of one kind keep their order in time."""
        placed = [*self._line_events(), *self._answer_events(), *self._other_events()]
        placed.sort(key=lambda each: each[:2])
        return [event for *_, event in placed]

    def _line_events(self) -> Iterator[tuple[int, int, Event]]:
        for position, line in enumerate(self._lines, 1):
            about = {"epoch": line.epoch, "first": line.seq, "lines": (self._line(line),)}
            yield position, 0, {"kind": "append", **about}

    def _answer_events(self) -> Iterator[tuple[int, int, Event]]:
        for call in self._answers:
            answer = self._answer(call) if _group_of(call) == self._group else _OTHER
            about = {"kind": "answer", "epoch": call.epoch, "revision": call.revision}
            landed = self._position(call.ret_ms)
            place = (call.revision, _ANSWER) if call.revision <= landed else (landed, _EARLY)
            yield *place, {**about, **answer}

    def _other_events(self) -> Iterator[tuple[int, int, Event]]:
        """Claims, sent assignments, unknown outcomes and writes, where the journal stood at their time."""
        history, timed = self._history, list[tuple[int, Event]]()
        for shard_id, epoch, at_ms in history.unknown_appends:
            if shard_id == self._shard_id:
                timed.append((at_ms, {"kind": "unknown", "epoch": epoch}))
        for call in self._syncs:
            timed.append((call.sent_ms, _sent(call.request)))
        for effect in history.effects:
            if effect.group == self._group:
                about = {"partition": _name(TOPIC, effect.partition), "token": generation_of(effect.token)}
                timed.append((effect.at_ms, {"kind": "write", "accepted": effect.accepted, **about}))
        for at_ms, event in sorted(timed, key=lambda each: each[0]):
            yield self._position(at_ms), _LATER, event
        for shard_id, epoch, _, at_ms in history.epochs:
            if shard_id == self._shard_id:
                yield self._position_of_claim(epoch, at_ms), _LATER, {"kind": "claim", "epoch": epoch}

    def _position(self, at_ms: int) -> int:
        """How many lines had landed by then."""
        return bisect_right(self._landed_ms, at_ms)

    def _position_of_claim(self, epoch: int, at_ms: int) -> int:
        """A line that landed in the same millisecond came before the claim if its epoch is lower."""
        position = self._position(at_ms)
        while position and self._lines[position - 1].landed_ms == at_ms and self._lines[position - 1].epoch >= epoch:
            position -= 1
        return position

    def _line(self, line: Landed) -> Event:
        entry = line.entry
        if isinstance(entry.record, r.ShardAcquired):
            return {"kind": "acquired"}
        if (entry.namespace, entry.group_id) != self._group:
            return {"kind": "other"}
        if isinstance(entry.record, r.OffsetsCommitted):
            return self._committed(entry.record)
        return _line_of(entry.record)

    def _committed(self, record: r.OffsetsCommitted) -> Event:
        """The first partition of a commit; the model has no commits of users' own transactions."""
        item = record.offsets[0]
        call = self._commits.get(item.metadata)
        if call is None:
            return {"kind": "other"}
        assert isinstance(call.request, CommitOffsets)
        about = {"partition": _name(item.topic, item.partition), "offset": item.offset, "id": item.metadata}
        gen, late = call.request.generation_id, call.ret_ms < 0
        return {"kind": "committed", "by": record.member_id, "gen": gen, "late": late, **about}

    def _answer(self, call: Call) -> Event:
        match call.reply:
            case JoinReply(error=ErrorCode.NONE, pending=False) as reply:
                about = {"gen": reply.generation_id, "leader": reply.leader_id, "member": reply.member_id}
                return {"call": "join", **about}
            case SyncReply(error=ErrorCode.NONE, pending=False) as reply:
                assert isinstance(call.request, SyncGroup)
                about = {"member": call.request.member_id, "share": _share(reply.assignment)}
                return {"call": "sync", "gen": reply.generation_id, **about}
            case CommitReply() as reply:
                assert isinstance(call.request, CommitOffsets)
                ids = frozenset({call.request.offsets[0].metadata})
                return {"call": "commit" if reply.error is _NONE else "reject", "ids": ids}
            case _:
                return _OTHER


def _line_of(record: r.Record) -> Event:
    """A journal line as an action of the model; "other" for lines that change none of the facts in it."""
    match record:
        case r.RebalanceStarted():
            return {"kind": "started"}
        case r.MemberJoined():
            return {"kind": "joined", "member": record.member.member_id}
        case r.MemberLeft() | r.MemberExpired() | r.MemberRemoved():
            return {"kind": "gone", "member": record.member_id}
        case r.MemberFenced():
            return {"kind": "replaced", "member": record.member_id, "new": record.new_member_id}
        case r.GenerationCompleted():
            about = {"gen": record.generation_id, "leader": record.leader_id, "members": frozenset(record.member_ids)}
            return {"kind": "completed", "claims": (), **about}
        case r.AssignmentSynced():
            about = {"gen": record.generation_id, "leader": record.leader_id, "resync": record.resync}
            return {"kind": "synced", "assignment": _shares(record.assignments), **about}
        case r.AssignmentFailed():
            return {"kind": "failed"}
        case r.OffsetsDeleted():
            return {"kind": "cleared", "partitions": frozenset(_name(*each) for each in record.partitions)}
        case r.GroupEmptied() | r.GroupDeleted():
            return {"kind": record.kind.removeprefix("group_"), "gen": record.generation_id}
        case _:
            return {"kind": "other"}


def _sent(request: object) -> Event:
    assert isinstance(request, SyncGroup)
    shares = _shares(request.assignments)
    return {"kind": "send", "by": request.member_id, "gen": request.generation_id, "assignment": shares}


def _shares(assignments: Sequence[tuple[str, bytes]]) -> dict[str, frozenset[str]]:
    return {member_id: _share(assignment) for member_id, assignment in assignments}


def _share(assignment: bytes) -> frozenset[str]:
    return frozenset(_name(TOPIC, partition) for partition in decode_share(assignment))


def _name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def _group_of(call: Call) -> GroupKey:
    return call.request.namespace, getattr(call.request, "group_id", "")


# --- TLA+ --------------------------------------------------------------------------------------------


def written(value: object) -> str:
    """A value in TLA+. A dictionary with the key "kind" is a record, any other is a function."""
    match value:
        case bool():
            return str(value).upper()
        case int():
            return str(value)
        case str():
            return f'"{value}"'
        case Mapping() if "kind" in value:
            return "[" + ", ".join(f"{key} |-> {written(each)}" for key, each in value.items()) + "]"
        case Mapping():
            return "(" + (" @@ ".join(f'"{key}" :> {written(each)}' for key, each in value.items()) or "<<>>") + ")"
        case Set():
            return "{" + ", ".join(sorted(map(written, value))) + "}"
        case tuple():
            return "<<" + ", ".join(map(written, value)) + ">>"
    raise TypeError(f"{value!r} has no form in TLA+")


def module_of(events: Sequence[Event]) -> str:
    """The module TraceEvents."""
    partitions = frozenset(name for event in events for name in _partitions(event))
    rows = ",\n  ".join(map(written, events))
    return (
        "---- MODULE TraceEvents ----\nEXTENDS Integers, Sequences, TLC\n"
        f"TracePartitions == {written(partitions)}\nTraceOfWorld == <<\n  {rows}\n>>\n====\n"
    )


def _partitions(value: object) -> Iterator[str]:
    """Every partition that an event names."""
    match value:
        case {"partition": str(name), **_rest}:
            yield name
        case {"lines": tuple(lines)}:
            for line in lines:
                yield from _partitions(line)
        case {"partitions": frozenset(names)}:
            yield from names


def replay(world: World, group: GroupKey, *rules: str) -> Verdict:
    """Have TLC check the events of one group of a world that has been played, by all rules if none is named."""
    shard_id = shard_of(*group, world.profile.shards)
    events = Recording(world, group, shard_id).events()
    return check("Trace", trace_configuration(*rules), {"TraceEvents": module_of(events)})


def played(seed: int, profile: Profile | None = None, mutant: str | None = None) -> World:
    """The world of a seed, after its run."""
    with MUTANTS[mutant]() if mutant else nullcontext():
        world = World(seed, profile)
        world.run()
    return world


def main(argv: Sequence[str] | None = None) -> int:
    """Replay the world of one seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="the seed of the world")
    parser.add_argument("--profile", choices=sorted(PROFILES), help="drawn by the seed otherwise")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="plant this bug of tests/simulation/mutants.py first")
    options = parser.parse_args(argv)
    world = played(options.seed, PROFILES.get(options.profile or ""), options.mutant)
    verdicts = {group: replay(world, group) for group in world.groups}
    for (_, group_id), verdict in verdicts.items():
        print(f"{group_id}: {verdict.depth} states, {verdict.violated or f'all {len(JOURNAL_RULES)} rules hold'}")
        if verdict.violated:
            print(verdict.output[-3_000:])
    return int(any(verdict.violated for verdict in verdicts.values()))


if __name__ == "__main__":
    sys.exit(main())
