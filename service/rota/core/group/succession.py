"""Which member leads the next generation, and when a candidate is to preempt the leader, where the type has priorities.

The times are soft state: a new owner counts them anew, so that a candidate waits longer, never shorter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rota.core.group.assignment import generation_of, server_side_of
from rota.core.group.state import STABLE, Group, Member, Ranked, Result, TimerKind
from rota.core.types import Generation, JoinedWith, Succession, attempt, server_side
from rota.protocol.fencing_token import fencing_token


@dataclass(frozen=True, slots=True)
class Preemption:
    """The member that is to follow the leader, from when on, and why."""

    member_id: str
    at_ms: int
    reason: str


def succession_of(group: Group) -> Succession | None:
    """How the type chooses leaders; None if it leaves that to the order of joining."""
    side = server_side_of(group)
    return None if side is None else side.succession


def choose_leader(group: Group, protocol_name: str) -> str | None:
    """The leader of the generation that is about to complete; None if no member has joined.

    The leader stays while it rejoins. If it has not, or is to step down, the earliest joined member follows, or the one
    that the type elects.
    """
    joined = [member for member in group.members.values() if member.joined]
    succession = _succession(group, protocol_name)
    passed_over = group.passed_over
    if group.steps_down is not None and succession is not None:
        leader = group.members.get(group.steps_down.member_id)
        if leader is not None and _says_no_work(succession, leader, protocol_name) and _knows_its_term(group, leader):
            passed_over = leader.member_id
    eligible = [member for member in joined if member.member_id != passed_over] or joined
    if not eligible:
        return None
    present = (member.member_id for member in eligible if member.member_id == group.generation_leader_id)
    leader_id = next(present, "")
    if succession is None:
        return leader_id or eligible[0].member_id
    former = group.members.get(leader_id)
    if former is not None and _says_no_work(succession, former, protocol_name) and not _knows_its_term(group, former):
        return leader_id
    candidates = [
        JoinedWith(
            each.member_id, each.image.group_instance_id, each.image.metadata_for(protocol_name), each.assignment
        )
        for each in eligible
    ]
    return _elected(succession, candidates, leader_id) or leader_id or eligible[0].member_id


def _says_no_work(succession: Succession, leader: Member, protocol_name: str) -> bool:
    return attempt(None, succession.holding, leader.image.metadata_for(protocol_name)) is False


def _knows_its_term(group: Group, leader: Member) -> bool:
    """Whether the leader's last join was sent after it had learnt that it leads this generation.

    An earlier join may arrive late, when the leader is at work: what it says of its work is no longer true.
    """
    return leader.known_generation_id >= group.generation_id


def lacks_only_a_leader(group: Group) -> bool:
    """Whether the leader of a generation is gone, and the members that are left hold nothing and agree on the protocol.
    One must be there.
    """
    side = server_side_of(group)
    if group.generation_leader_id is not None or side is None or side.wants_topic is not None:
        return False
    if side.succession is None or not side.succession.followers_hold_nothing:
        return False
    is_there = any(not member.missed_phase for member in group.members.values())
    return is_there and group.select_protocol() == group.protocol_name


def note_fetched(result: Result, group: Group, member: Member) -> None:
    """The member of a Stable group has its share of the present generation."""
    member.taken_along_from = None
    if not member.has_fetched or member.missed_phase:
        member.has_fetched, member.missed_phase = True, False
        watch_candidates(result, group)


def watch_candidates(result: Result, group: Group) -> None:
    """The group has a leader, or other candidates: count the time of each from here on, and set the timer."""
    succession = succession_of(group)
    if succession is None or group.state is not STABLE:
        group.preempt_at_ms = None
        return
    name, now_ms, known = group.protocol_name, result.now_ms, group.ranked
    ranked: dict[str, Ranked] = {}
    for member in group.members.values():
        priority = attempt(0, lambda said: int(succession.priority(said)), member.image.metadata_for(name))
        former = known.get(member.member_id)
        kept = former is not None and former.priority == priority
        ranked[member.member_id] = former if former is not None and kept else Ranked(priority, now_ms)
    group.ranked = ranked
    if group.reigns is None or group.reigns[0] != group.leader_id:
        group.reigns = (group.leader_id or "", now_ms)
    wish = group.steps_down
    if wish is not None and not (wish.member_id == group.leader_id and _heir_of(group, succession)):
        group.steps_down = None
    due = due_preemption(group)
    group.preempt_at_ms = None if due is None else due.at_ms
    if due is not None:
        result.set_timer(TimerKind.PREEMPT, group, "", due.at_ms)


def due_preemption(group: Group, now_ms: int | None = None) -> Preemption | None:
    """The first preemption that comes due; of those that are due at `now_ms` already, that of the best candidate."""
    succession, leader_id = succession_of(group), group.leader_id or ""
    if succession is None or group.state is not STABLE or leader_id not in group.ranked or group.reigns is None:
        return None
    if not group.members[leader_id].has_fetched:
        # A sync of the former generation would be refused, and the leader would lose what it is to hand over.
        return None
    wish = group.steps_down
    if wish is not None and wish.member_id == leader_id and (heir_id := _heir_of(group, succession)):
        return Preemption(heir_id, _unfrozen(group, wish.at_ms), wish.reason)
    if attempt("unknown", succession.successor, group.members[leader_id].assignment):
        return None  # It is asked already, or the type cannot say.
    wanted = attempt({}, succession.challengers, generation_of(group).members, leader_id)
    leads_since_ms = max(group.ranked[leader_id].since_ms, group.reigns[1])
    found: list[Preemption] = []
    for member_id, hold_ms in wanted.items():
        if member_id in group.ranked and member_id != leader_id and not group.members[member_id].missed_phase:
            since_ms = max(group.ranked[member_id].since_ms, leads_since_ms)
            ranks = [f"{each} of priority {group.ranked[each].priority}" for each in (member_id, leader_id)]
            reason = f"candidate {ranks[0]} has outranked leader {ranks[1]} for {hold_ms} ms"
            found.append(Preemption(member_id, _unfrozen(group, since_ms + hold_ms), reason))
    if now_ms is not None:
        found = [each for each in found if each.at_ms <= now_ms][:1]
    return min(found, key=lambda each: each.at_ms, default=None)


def successor_of(group: Group, metadata: bytes, known_generation_id: int) -> str:
    """The member that follows the leader of a Stable group, which joins again with this metadata, because it was asked
    to hand over; empty if it was not, if it goes on, or if it does not know this generation yet.
    """
    succession, leader = succession_of(group), group.members.get(group.leader_id or "")
    if succession is None or leader is None or known_generation_id < group.generation_id:
        return ""
    members = [
        replace(each, metadata=metadata) if each.member_id == leader.member_id else each
        for each in generation_of(group).members
    ]
    elected = _elected(succession, members, leader.member_id)
    return elected if attempt("", succession.successor, leader.assignment) and elected != leader.member_id else ""


def _unfrozen(group: Group, at_ms: int) -> int:
    """Return the time of a preemption: not before a freeze ends."""
    return max(at_ms, group.frozen_until_ms or at_ms)


def can_hand_over(group: Group, leader_id: str) -> bool:
    """Whether this leader ends its work when it is asked to, before another member leads."""
    succession, leader = succession_of(group), group.members.get(leader_id)
    if succession is None or leader is None:
        return False
    return attempt(None, succession.holding, leader.image.metadata_for(group.protocol_name)) is not None


def _heir_of(group: Group, succession: Succession) -> str:
    """The member that would lead if the leader were not there; empty if there is none.

    A static member that missed the last join phase may be gone. The leader would wait for it in vain, again and again,
    and each generation that completes begins the absent member's session anew.
    """
    absent = {member.member_id for member in group.members.values() if member.missed_phase}
    absent.add(group.leader_id or "")
    others = [each for each in generation_of(group).members if each.member_id not in absent]
    if not others:
        return ""
    return _elected(succession, others, "") or others[0].member_id


def handing_over(group: Group, successor_id: str) -> Generation:
    """The same members in the next generation, with the request to the leader to hand over."""
    generation_id = group.generation_id + 1
    token = fencing_token(generation_id)
    members = tuple(
        JoinedWith(each.member_id, each.group_instance_id, each.metadata, each.former, token)
        for each in generation_of(group).members
    )
    return Generation(generation_id, group.leader_id or "", group.protocol_name, members, token, successor_id)


def _succession(group: Group, protocol_name: str) -> Succession | None:
    side = server_side(group.protocol_type, protocol_name)
    return None if side is None else side.succession


def _elected(succession: Succession, members: list[JoinedWith], leader_id: str) -> str:
    """Empty where a plug-in fails, or names a member that is not among these."""
    elected = attempt("", succession.elect, members, leader_id)
    return elected if any(member.member_id == elected for member in members) else ""
