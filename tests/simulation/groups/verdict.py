"""Whether a group is at rest: all that it is about has its holder, and the holder was notified. Empty text if so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from rota.core.assignors import TopicPartition, assign
from rota.core.assignors.work import WorkItem
from rota.core.group.state import STABLE, Group
from rota.core.types.consumer import decode_assignment, decode_subscription
from rota.core.types.registry import SERVER_PREFIX
from rota.core.types.topics import partition_counts, partition_racks, partition_weights
from tests.simulation.groups.bodies import LEADERSHIP, CandidateLife, PoolLife
from tests.simulation.groups.life import Life
from tests.simulation.groups.permits import wrong_holders
from tests.simulation.groups.plan import CONNECT, CONSUMERS, ELECTION, PERMITS
from tests.simulation.groups.rules import Place
from tests.simulation.groups.sharing import ConsumerLife

if TYPE_CHECKING:
    from tests.simulation.groups.world import ProgramWorld


def unrest(world: ProgramWorld) -> str:
    """Why the group is not at rest."""
    lives = [life for life in world.live() if life.entered]
    missing = [slot.name for slot in world.programs if slot.wanted and not slot.is_running]
    if missing:
        return f"{missing} do not run"
    if not lives:
        return "no program has entered its block"
    group = world.group()
    return _membership(lives, group) or _holders(world, lives, group)


def _membership(lives: list[Life], group: Group | None) -> str:
    known = set(group.members) if group is not None else set()
    alive = {life.member.member_id: life.name for life in lives}
    if known != set(alive):
        ghosts, strangers = sorted(known - set(alive)), sorted(name for key, name in alive.items() if key not in known)
        return f"members that no program is: {ghosts}; programs that are no members: {strangers}"
    if group is not None and group.state is not STABLE:
        return f"{group.state.value} since {group.state_since_ms}: {group.rebalance_reason}"
    return ""


def _holders(world: ProgramWorld, lives: list[Life], group: Group | None) -> str:
    if world.plan.kind == ELECTION:
        return _leaders(lives)
    if world.plan.kind == PERMITS:
        return wrong_holders(lives)
    wanted = wanted_places(world, lives)
    held = Counter(place for life in lives for place in _notified(life))
    if wrong := {place: held[place] for place in {**wanted, **held} if held[place] != wanted.get(place, 0)}:
        return f"holders by place, where that is wrong: {wrong}; wanted are {wanted}"
    if world.plan.kind == CONSUMERS and group is not None:
        return _out_of_date(world, group)
    return ""


def _leaders(lives: list[Life]) -> str:
    """One candidate leads, of the highest priority that a candidate has."""
    leading = [life for life in lives if life.is_valid() and LEADERSHIP in life.bodies]
    if len(leading) != 1:
        return f"terms whose body runs: {[life.name for life in leading]}"
    ranks = {life.name: life.priority for life in lives if isinstance(life, CandidateLife)}
    is_best = ranks[leading[0].name] == max(ranks.values())
    return "" if is_best else f"{leading[0].name} leads, the priorities are {ranks}"


def _notified(life: Life) -> Iterable[Place]:
    if isinstance(life, PoolLife):
        shards = life.pool.shards if life.pool is not None else ()
        return [place for place in shards if place in life.bodies or place in life.finished]
    return list(life.held) if life.is_valid() else []


def wanted_places(world: ProgramWorld, lives: list[Life]) -> dict[Place, int]:
    """How many holders each place should have. A unit in quarantine has none."""
    left_out = world.quarantined()
    if world.plan.kind == CONNECT:
        return {item: 1 for item in sorted(world.work_now()) if _name(item) not in left_out}
    if world.plan.kind != CONSUMERS:
        return dict.fromkeys(range(world.numbers), 1)
    wanted: dict[Place, int] = {}
    for topic, partitions in world.partition_counts().items():
        asking = sum(1 for life in lives if isinstance(life, ConsumerLife) and _asks(life, topic))
        holders = min(asking, world.rules.most_holders)
        if holders:
            places = [TopicPartition(topic, number) for number in range(partitions)]
            wanted.update({place: holders for place in places if _name(place) not in left_out})
    return wanted


def _name(place: TopicPartition | WorkItem) -> str:
    """The unit, as quarantine names it."""
    topic, number = place
    return f"{topic}/{number}"


def _asks(life: ConsumerLife, topic: str) -> bool:
    return life.names is None or topic in life.names


def _out_of_date(world: ProgramWorld, group: Group) -> str:
    """An assignment is out of date where the same strategy, asked again, would move something."""
    name = group.protocol_name or ""
    if name.startswith(SERVER_PREFIX):
        return ""
    topics = world.topic_facts()
    shares = {key: decode_assignment(member.assignment).partitions for key, member in group.members.items()}
    subscriptions = [
        replace(
            decode_subscription(member.image.metadata_for(name)).of_member(key, member.image.group_instance_id),
            owned_partitions=shares[key],
        )
        for key, member in group.members.items()
    ]
    again = assign(name, partition_counts(topics), subscriptions, partition_racks(topics), partition_weights(topics))
    left_out = world.quarantined()
    assigned = {key: {each for each in again.get(key, ()) if _name(each) not in left_out} for key in shares}
    moved = {key for key in shares if set(shares[key]) != assigned[key]}
    return f"out of date: {name} would give {cast('object', again)}, given are {shares}" if moved else ""


def leads_without_body(life: Life) -> bool:
    """Whether a candidate leads at this moment while no body of its runs."""
    return isinstance(life, CandidateLife) and life.is_valid() and not life.bodies
