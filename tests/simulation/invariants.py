"""What must hold of a group and of a shard between any two commands; pure, and cheap enough to ask often.

Each function returns the rules that are broken, in words; an empty list is the normal case.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from rota.core.group.assignment import server_side_of
from rota.core.group.state import COMPLETING_REBALANCE, DEAD, EMPTY, PREPARING_REBALANCE, STABLE, Group, Member
from rota.core.group.succession import due_preemption
from rota.protocol.fencing_token import LAST_TAKEOVER


def check_group(group: Group) -> list[str]:
    """The broken rules of one group."""
    broken = list(_members_and_counts(group))
    broken += _state_and_timers(group)
    broken += check_join_phase(group)
    broken += check_sync_phase(group)
    broken += _settled_side(group)
    broken += _tokens(group)
    broken += _preemption(group)
    for member in group.members.values():
        broken += (f"{member.member_id}: {rule}" for rule in _member(group, member))
    return broken


def check_join_phase(group: Group) -> Iterator[str]:
    """L3: a join phase in which every member has joined has ended; only an initial delay, or a pending id, goes on."""
    if group.state is not PREPARING_REBALANCE or group.initial or group.pending or not group.members:
        return
    if all(member.joined for member in group.members.values()):
        yield f"every member has joined, but the join phase goes on until {group.join_deadline_ms}"


def check_sync_phase(group: Group) -> Iterator[str]:
    """L3: after its leader's sync a generation has its assignment, whichever members have not synced yet."""
    leader = group.members.get(group.leader_id or "")
    awaits = group.state is COMPLETING_REBALANCE and server_side_of(group) is None
    if awaits and leader is not None and leader.sync_call is not None:
        yield f"the leader has synced, but the members wait for it until {group.sync_deadline_ms}"


def _members_and_counts(group: Group) -> Iterator[str]:
    members = group.members
    joined = sum(member.joined for member in members.values())
    if group.joined_count != joined:
        yield f"joined_count is {group.joined_count}, but {joined} have joined"
    support: dict[str, int] = {}
    for member in members.values():
        for protocol in member.image.protocols:
            support[protocol.name] = support.get(protocol.name, 0) + 1
    if group.support != support:
        yield f"support is {group.support}, but the members list {support}"
    static = {m.image.group_instance_id: i for i, m in members.items() if m.image.group_instance_id is not None}
    if group.static_members != static:
        yield f"static members are {group.static_members}, but the members say {static}"
    if any(key != member.member_id for key, member in members.items()):
        yield "a member stands under another's id"
    positions = [member.position for member in members.values()]
    if any(earlier >= later for earlier, later in pairwise(positions)):
        yield f"positions {positions} do not follow the order of joining"
    if positions and positions[-1] >= group.next_position:
        yield f"next_position {group.next_position} is taken"
    if (group.leader_id in members) != bool(members):
        yield f"leader {group.leader_id!r} of members {list(members)}"
    if group.state in (COMPLETING_REBALANCE, STABLE) and group.generation_leader_id != group.leader_id:
        yield f"{group.leader_id} leads, but the generation was given to {group.generation_leader_id!r}"
    if both := [member_id for member_id in group.pending if member_id in members]:
        yield f"{both} are pending and members at once"


def _state_and_timers(group: Group) -> Iterator[str]:
    state = group.state
    in_generation = state in (COMPLETING_REBALANCE, STABLE)
    if state is DEAD:
        yield "a deleted group is kept"
    if state is EMPTY and group.members:
        yield f"Empty with members {list(group.members)}"
    if in_generation and not group.members:
        yield f"{state} without members"
    if state in (COMPLETING_REBALANCE, STABLE) and group.support.get(group.protocol_name or "", 0) != len(
        group.members
    ):
        yield f"protocol {group.protocol_name!r} is not listed by all members"
    if (state is PREPARING_REBALANCE) != (group.join_deadline_ms is not None):
        yield f"{state} with join deadline {group.join_deadline_ms}"
    if group.initial and state is not PREPARING_REBALANCE:
        yield f"an initial join phase in {state}"
    if strangers := [member_id for member_id in group.pending_sync if member_id not in group.members]:
        yield f"{strangers} are awaited to sync but are no members"
    if in_generation:
        if bool(group.pending_sync) != (group.sync_deadline_ms is not None):
            yield f"{len(group.pending_sync)} have not synced, with sync deadline {group.sync_deadline_ms}"
    elif group.sync_deadline_ms is not None:
        yield f"{state} with a sync deadline"
    if group.join_generation_id > group.generation_id:
        yield f"the last join phase made {group.join_generation_id}, above generation {group.generation_id}"


def _settled_side(group: Group) -> Iterator[str]:
    row = group.settled
    if row is None:
        if group.offsets or any(member.settled is not None for member in group.members.values()):
            yield "the store knows its members or offsets, but not the group"
        if group.state not in (EMPTY, PREPARING_REBALANCE):
            yield f"{group.state}, but the store does not know it"
        return
    if row.generation_id != group.generation_id:
        yield f"generation {group.generation_id}, but {row.generation_id} is settled"
    if group.state is not PREPARING_REBALANCE and row.state != group.state.value:
        yield f"{group.state}, but {row.state} is settled"
    settled = [member for member in group.members.values() if member.settled is not None]
    if row.leader_id != group.generation_leader_id:
        yield f"{group.generation_leader_id!r} leads the generation, but {row.leader_id!r} is settled"
    if row.takeovers != group.takeovers:
        yield f"{group.takeovers} takeovers, but {row.takeovers} are settled"
    if row.state in (COMPLETING_REBALANCE.value, STABLE.value) and row.leader_id is None:
        yield f"{row.state} is settled without a leader"
    if row.leader_id is not None and row.leader_id not in {member.member_id for member in settled}:
        yield f"the settled leader {row.leader_id} is no settled member"


def _tokens(group: Group) -> Iterator[str]:
    """S7d: no two members that took a place over in this generation have the same fencing token."""
    given = [m.takeover for m in group.members.values() if 0 < m.takeover < LAST_TAKEOVER]
    if len(set(given)) != len(given) or max(given, default=0) > group.takeovers:
        yield f"members have the numbers {given} of {group.takeovers} takeovers"


def _preemption(group: Group) -> Iterator[str]:
    """L4: a candidate that outranks the leader of a Stable group has a timer, if it is to preempt that."""
    due = due_preemption(group)
    if due is not None and group.preempt_at_ms != due.at_ms:
        yield f"{due.member_id} is to lead from {due.at_ms} on, but the timer is set for {group.preempt_at_ms}"


def _member(group: Group, member: Member) -> Iterator[str]:
    state = group.state
    if member.joined and state is not PREPARING_REBALANCE:
        yield f"has joined in {state}"
    if member.join_call is not None and not member.joined:
        yield "parks a join without having joined"
    if member.sync_call is not None and state is not COMPLETING_REBALANCE:
        yield f"parks a sync in {state}"
    if member.heartbeat_call is not None and state not in (COMPLETING_REBALANCE, STABLE):
        yield f"parks a heartbeat in {state}"
    if member.settled is not None and member.settled.member_id != member.member_id:
        yield f"is settled as {member.settled.member_id}"
    if state in (COMPLETING_REBALANCE, STABLE) and member.settled != member.image:
        yield f"is not settled in {state}"
    parked = member.join_call is not None or member.sync_call is not None
    deadline_ms, armed_ms = member.session_deadline_ms, member.session_armed_ms
    if parked and deadline_ms is not None:
        yield "has a session deadline although a parked call proves that it lives"
    if not parked and deadline_ms is None:
        yield "is not parked and has no session deadline: it could stay for ever"
    if deadline_ms is not None and (armed_ms is None or armed_ms > deadline_ms):
        yield f"its session ends at {deadline_ms}, its timer rings at {armed_ms}"
