"""Drives one group of the real core in virtual time, and builds the states that tests begin with.

After every step it checks what must always hold: the invariants, that each call is answered once, that the journal
folds to the live state, and that the rows are those of the live state.
"""

from __future__ import annotations

import heapq
from typing import Any

from msgspec.structs import replace

from rota.core.group.records import Entry, ShardAcquired
from rota.core.group.rows import GroupRow, RowChanges, ShardImage
from rota.core.group.shard import Shard
from rota.core.group.state import Group, Result, Timer
from rota.protocol import messages as m
from rota.protocol.limits import Limits
from rota.testing.memory import MemoryTables, _Shard
from tests.simulation.facts import facts_of, rows_of
from tests.simulation.invariants import check_group

KEY = NAMESPACE, GROUP_ID = "default", "g"
SESSION_MS, REBALANCE_MS, DELAY_MS = 10_000, 30_000, 300
LIMITS = Limits(initial_rebalance_delay_ms=DELAY_MS, offsets_retention_ms=60_000, empty_group_retention_ms=0)


def check_shard(shard: Shard) -> list[str]:
    """The broken rules of all groups, each with its group's name, and of the shard itself."""
    broken = [f"{group.group_id}: {rule}" for group in shard.groups.values() for rule in check_group(group)]
    for key, group in shard.groups.items():
        if group.key != key:
            broken.append(f"{key}: holds the group {group.key}")
        if group.generation_id < shard.last_generation(key):
            broken.append(f"{group.group_id}: generation {group.generation_id} is below that of its tombstone")
    return broken


class Core:
    """One shard with its clock, its timers, its calls, its journal and its rows."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.shard = Shard(0, limits)
        self.folded = Shard(0, limits)
        self.rows = _Shard()
        self.now_ms = 1_000
        self.journal: list[Entry] = []
        self.requests: dict[int, m.Request] = {}
        self.answers: dict[int, Any] = {}
        self.unanswered: dict[int, None] = {}
        self.ids: list[str] = []
        """The members that a builder made, in order of joining."""
        self.checking = True
        """Off where a path that was checked before is only walked again."""
        self._timers: list[tuple[int, int, Timer]] = []
        self._set = 0

    # --- asking ----------------------------------------------------------------------------------

    def send(self, request: m.Request) -> int:
        """Hand a request in; returns the number of the call, which may stay parked."""
        call = len(self.requests) + 1
        self.requests[call] = request
        self.unanswered[call] = None
        self._take(self.shard.handle(request, call, self.now_ms))
        return call

    def ask(self, request: m.Request) -> Any:
        """The answer, of a request that is answered at once."""
        call = self.send(request)
        assert call in self.answers, f"{request} is parked"
        return self.answers[call]

    def is_parked(self, call: int) -> bool:
        return call in self.unanswered

    def answer(self, call: int) -> Any:
        assert call in self.answers, f"{self.requests[call]} is parked"
        return self.answers[call]

    def wait_is_over(self, call: int) -> None:
        """The call's own time ran out."""
        self._take(self.shard.unpark(self.requests[call], call, self.now_ms, answer=True))

    def hang_up(self, call: int) -> None:
        """The client closed the connection."""
        self.unanswered.pop(call, None)
        self._take(self.shard.unpark(self.requests[call], call, self.now_ms, answer=False))

    def advance(self, ms: int) -> None:
        """Let time pass; every timer rings when it is due."""
        end_ms = self.now_ms + ms
        while self._timers and self._timers[0][0] <= end_ms:
            at_ms, _, timer = heapq.heappop(self._timers)
            self.now_ms = max(self.now_ms, at_ms)
            self._take(self.shard.on_timer(timer, self.now_ms))
        self.now_ms = end_ms

    def fire_next(self) -> bool:
        """Let time pass until the next timer rings; False if none is set."""
        if self._timers:
            self.advance(max(self._timers[0][0] - self.now_ms, 0))
            return True
        return False

    def let_the_join_phase_end(self) -> None:
        """Wait until the initial delay, or the rebalance timeout, is over; not longer."""
        while self.group.state == "PreparingRebalance":
            self.advance(100)
        assert self.group.state == "CompletingRebalance", self.group.state

    def sweep(self) -> int:
        result, gone = self.shard.sweep(self.now_ms)
        self._take(result)
        return gone

    def restart(self) -> None:
        """Another owner loads the shard: parked calls are gone, acknowledged facts are not."""
        image = self.image()
        self.shard, result = Shard.load(image, self.limits, self.now_ms)
        self._timers.clear()
        self.unanswered.clear()
        result.records.append(Entry("", "", 0, self.now_ms, ShardAcquired("r", 1, "")))
        self._take(result)

    # --- the group -------------------------------------------------------------------------------

    @property
    def group(self) -> Group:
        return self.shard.groups[(NAMESPACE, GROUP_ID)]

    @property
    def generation_id(self) -> int:
        return self.group.generation_id

    def known_generation_id(self, member_id: str) -> int:
        """The generation that a member knows of; none before its first one."""
        return self.generation_id if member_id in self.group.members else m.NO_GENERATION

    @property
    def leader_id(self) -> str:
        assert self.group.leader_id is not None
        return self.group.leader_id

    def kinds(self) -> list[str]:
        return [entry.record.kind for entry in self.journal]

    def last(self, kind: str) -> Any:
        return next(entry.record for entry in reversed(self.journal) if entry.record.kind == kind)

    def image(self) -> ShardImage:
        """What the store holds."""
        tables = MemoryTables(lambda: 0)
        tables._shards[0] = self.rows
        return tables.load(0)

    def deadline_ms(self, member_id: str) -> int | None:
        return self.group.members[member_id].session_deadline_ms

    # --- after every step ------------------------------------------------------------------------

    def _take(self, result: Result) -> None:
        for timer in result.timers:
            self._set += 1
            heapq.heappush(self._timers, (max(timer.at_ms, self.now_ms), self._set, timer))
        for call, reply in result.replies:
            assert call in self.unanswered, f"{self.requests[call]} is answered twice, now with {reply}"
            del self.unanswered[call]
            self.answers[call] = reply
        self.journal += result.records
        for entry in result.records:
            self.folded.replay(entry)
        changes = self.shard.rows()
        if self.checking:
            assert result.records or changes == RowChanges(), "rows changed without a record that says so"
        self.rows.apply(changes)
        if self.checking:
            self._check()

    def _check(self) -> None:
        assert check_shard(self.shard) == []
        assert facts_of(self.shard) == facts_of(self.folded), "the journal does not fold to the live state"
        assert rows_of(self.shard.image()) == rows_of(self.image()), "the rows are not those of the live state"
        self._check_parked()

    def _check_parked(self) -> None:
        parked = {
            call
            for group in self.shard.groups.values()
            for member in group.members.values()
            for call in (member.join_call, member.sync_call, member.heartbeat_call)
            if call is not None
        }
        assert parked == self.unanswered.keys(), f"parked are {parked}, unanswered {list(self.unanswered)}"


# --- requests -----------------------------------------------------------------------------------------


def a_join(
    member_id: str = "",
    *,
    new: str = "",
    instance: str | None = None,
    protocols: tuple[tuple[str, bytes], ...] = (("range", b""),),
    protocol_type: str = "worker",
    session_ms: int = SESSION_MS,
    rebalance_ms: int = REBALANCE_MS,
) -> m.JoinGroup:
    return m.JoinGroup(
        NAMESPACE,
        GROUP_ID,
        protocol_type,
        tuple(m.Protocol(name, metadata) for name, metadata in protocols),
        session_ms,
        rebalance_ms,
        member_id=member_id,
        group_instance_id=instance,
        new_member_id=new,
    )


def a_sync(member_id: str, generation_id: int, instance: str | None = None, **assign: bytes) -> m.SyncGroup:
    assignments = tuple(assign.items())
    return m.SyncGroup(NAMESPACE, GROUP_ID, member_id, generation_id, instance, assignments=assignments)


def a_heartbeat(member_id: str, generation_id: int, *, wait_ms: int = 0, instance: str | None = None) -> m.Heartbeat:
    return m.Heartbeat(NAMESPACE, GROUP_ID, member_id, generation_id, instance, wait_ms)


def a_leave(*member_ids: str, by_admin: bool = False) -> m.LeaveGroup:
    return m.LeaveGroup(NAMESPACE, GROUP_ID, tuple(m.LeavingMember(i) for i in member_ids), by_admin)


def a_commit(
    member_id: str, generation_id: int, offset: int = 7, partition: int = 0, metadata: str = ""
) -> m.CommitOffsets:
    offsets = (m.OffsetToCommit("t", partition, offset, metadata=metadata),)
    return m.CommitOffsets(NAMESPACE, GROUP_ID, generation_id, offsets, member_id)


def a_fetch() -> m.FetchOffsets:
    return m.FetchOffsets(NAMESPACE, GROUP_ID)


def a_tombstone(generation_id: int) -> GroupRow:
    return GroupRow(*KEY, "Dead", generation_id, generation_id, None, None, None, 0, "", "")


# --- states -------------------------------------------------------------------------------------------


def an_empty_shard(limits: Limits = LIMITS) -> Core:
    return Core(limits)


def a_group_in_its_initial_delay(members: int = 2, static: int = 0, limits: Limits = LIMITS) -> Core:
    """`members` have joined an Empty group, `m0`, `m1`, …; the first `static` are static, as `i0`, `i1`, …"""
    core = Core(limits)
    for number in range(members):
        _let_join(core, f"m{number}", f"i{number}" if number < static else None)
    return core


def a_group_awaiting_its_assignment(members: int = 2, static: int = 0, limits: Limits = LIMITS) -> Core:
    """The join phase is over; no member has synced."""
    core = a_group_in_its_initial_delay(members, static, limits)
    core.let_the_join_phase_end()
    return core


def a_stable_group(members: int = 2, static: int = 0, limits: Limits = LIMITS) -> Core:
    """Each member has its assignment: `m0` leads, `m1` has the bytes `b"m1"`."""
    core = a_group_awaiting_its_assignment(members, static, limits)
    everybody = tuple((member_id, member_id.encode()) for member_id in core.ids)
    core.send(replace(a_sync(core.leader_id, core.generation_id), assignments=everybody))
    for member_id in core.ids:
        core.ask(a_sync(member_id, core.generation_id))
    assert core.group.state == "Stable"
    return core


def a_group_in_a_join_phase(members: int = 3, static: int = 0) -> Core:
    """A Stable group: its last dynamic member has joined again with other metadata; the others have yet to."""
    core = a_stable_group(members, static)
    core.send(a_join(core.ids[-1], protocols=(("range", b"changed"),)))
    assert core.group.state == "PreparingRebalance"
    return core


def an_empty_group() -> Core:
    """Its only member has left; an offset stays."""
    core = a_stable_group(members=1)
    core.ask(a_commit("m0", 1, offset=7))
    core.ask(a_leave("m0"))
    assert core.group.state == "Empty"
    return core


def _let_join(core: Core, member_id: str, instance: str | None) -> int:
    core.ids.append(member_id)
    if instance is not None:
        return core.send(a_join(new=member_id, instance=instance))
    core.ask(a_join(new=member_id))
    return core.send(a_join(member_id))


def everybody_again(core: Core) -> dict[str, int]:
    """All members join again, and the last ends the phase; returns their calls."""
    return {
        member_id: core.send(a_join(member_id, instance=member.image.group_instance_id))
        for member_id, member in list(core.group.members.items())
    }
