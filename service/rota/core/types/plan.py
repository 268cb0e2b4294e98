"""Plans: what a rebalance of a `consumer` group would do under a hypothesis. Nothing of it happens (ADR 60).

The strategy that assigns is the one that really would, with the claims that members would make: what they hold now. So
the plan of a departure is what happens when the member leaves, as long as nothing else changes before it does. What a
plan cannot know is the ids of members that are yet to join, which break ties between equals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count

from msgspec import Struct

from rota.core.assignors import (
    STRATEGIES,
    GroupSubscription,
    MemberSubscription,
    TopicPartition,
    UnknownAssignor,
    strategy,
)
from rota.core.assignors.forecast import AnyShares, Forecast, Move, forecast, imbalance, least_moves, moves_between
from rota.core.types.consumer import (
    PREFIX,
    PROTOCOL_TYPE,
    assigned_partitions,
    assigns,
    group_subscription,
    unit_of,
    wants_topic,
)
from rota.core.types.plugin import Generation, JoinedWith
from rota.core.types.topics import TopicFacts
from rota.core.types.wire_format import MalformedMetadata, by_topic
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.messages import DescribeReply, TopicPartitions
from rota.protocol.suggestions import shown, unknown

STAYS, LEAVES, JOINS = "stays", "leaves", "joins"
_NOTHING = Forecast({}, 0, {})


class Hypothesis(Struct, frozen=True):
    """The differences from the group as it is. Without any, the plan is that of a rebalance now.

    `without` are member ids or instance ids of members that leave. `more_members` join, with the subscription that most
    members have. `partitions` has topics with other counts. `strategy` replaces the group's; empty: it stays.
    """

    without: Sequence[str] = ()
    more_members: int = 0
    partitions: Mapping[str, int] = {}
    strategy: str = ""


class PlannedMember(Struct, frozen=True):
    """A member before and after. `fate` is `stays`, `leaves` or `joins`; a member that joins has a made-up id.

    `pauses`: the partitions of `before` on which it stops its work until the rebalance is over, or for good. Partitions
    of a member that leaves stand in `moved` and `unowned` instead.
    """

    member_id: str
    group_instance_id: str | None = None
    fate: str = STAYS
    before: tuple[TopicPartitions, ...] = ()
    after: tuple[TopicPartitions, ...] = ()
    pauses: tuple[TopicPartitions, ...] = ()


class PlannedMove(Struct, frozen=True):
    """Partitions of one topic that go from one member to another."""

    topic: str
    partitions: tuple[int, ...]
    from_member_id: str
    to_member_id: str


class PlannedRebalance(Struct, frozen=True):
    """The group before and after.

    `moves` counts the partitions that go from one member to another, `moved` lists them. `least_moves` is the fewest
    that any assignment needs whose largest share is no larger than the planned one's, and whose smallest is no smaller:
    exact if all members subscribe to the same topics, and otherwise a lower bound. `rounds` is the number of join
    phases: 0 if the members stay in their generation. An imbalance is the partitions of the fullest member less those
    of the emptiest. `notes` says for people what the plan assumes.
    """

    generation_id: int
    protocol_name: str
    planned_protocol_name: str
    rounds: int
    moves: int
    least_moves: int
    imbalance_before: int
    imbalance_after: int
    members: tuple[PlannedMember, ...]
    moved: tuple[PlannedMove, ...]
    unowned: tuple[TopicPartitions, ...]
    notes: tuple[str, ...]


def plan_rebalance(group: DescribeReply, topics: Mapping[str, TopicFacts], hypothesis: Hypothesis) -> PlannedRebalance:
    """The plan by the topics of the group's namespace. It may take a second.

    Raises `RejectedRequest`: `INVALID_REQUEST` names the fault of the hypothesis or the group,
    `INVALID_PARTITIONS` a count below today's, `REBALANCE_IN_PROGRESS` a group that is not Stable, and
    `ASSIGNMENT_FAILED` a strategy that raises.
    """
    if group.state == "Empty":
        raise _invalid("the group has no members, so there is no assignment to plan from")
    if group.protocol_type != PROTOCOL_TYPE:
        why = f"the group is of type '{group.protocol_type}': only groups of type '{PROTOCOL_TYPE}' share partitions"
        raise _invalid(f"{why} that a plan can assign")
    if group.state != "Stable":
        why = f"the group rebalances ({group.rebalance_reason}); ask again once it is Stable"
        raise RejectedRequest(ErrorCode.REBALANCE_IN_PROGRESS, why)
    if hypothesis.more_members < 0:
        raise _invalid("more_members must be at least 0; name the members that leave")
    return _Planner(group, topics, hypothesis).plan()


class _Planner:
    """One plan. The fields are the group as it is, and the hypothesis, both checked."""

    def __init__(self, group: DescribeReply, topics: Mapping[str, TopicFacts], hypothesis: Hypothesis) -> None:
        self._hypothesis = hypothesis
        self._described = group
        self._notes: list[str] = []
        self._before = _shares_now(group)
        self._name = _strategy_of(hypothesis, group)
        self._cooperative = strategy(self._name).cooperative
        self._leaving = _leaving(hypothesis, group)
        self._topics = self._planned_topics(topics)
        self._group = self._planned_group()
        self._added = self._group.members[len(group.members) - len(self._leaving) :]

    def plan(self) -> PlannedRebalance:
        foreseen = self._foreseen()
        after = {each.member_id: self._assigned(foreseen.shares[each.member_id]) for each in self._group.members}
        moves = moves_between(self._before, after)
        self._note_assumptions()
        return PlannedRebalance(
            generation_id=self._described.generation_id,
            protocol_name=self._described.protocol_name,
            planned_protocol_name=self._hypothesis.strategy or self._described.protocol_name,
            rounds=foreseen.rounds,
            moves=len(moves),
            least_moves=least_moves(self._before, after),
            imbalance_before=imbalance(self._before),
            imbalance_after=imbalance(after),
            members=tuple(self._planned_members(after, foreseen)),
            moved=_grouped_moves(moves),
            unowned=_grouped(self._unowned(after)),
            notes=tuple(self._notes),
        )

    # --- the hypothesis ----------------------------------------------------------------------------

    def _planned_topics(self, registered: Mapping[str, TopicFacts]) -> dict[str, TopicFacts]:
        """The topics that members subscribe to, with the partitions that they have in the hypothesis."""
        wants = _wants(self._described)
        topics = {name: facts for name, facts in registered.items() if wants(name)}
        if not self._described.protocol_name.startswith(PREFIX):
            self._add_unregistered(topics)
        for topic, partitions in self._hypothesis.partitions.items():
            known = topics.get(topic)
            if known is None and not wants(topic):
                raise _invalid(f"partitions: {unknown('topic', topic, topics)}")
            if known is not None and partitions < known.partitions:
                why = f"must be at least {known.partitions}: {topic} has as many, and a count only grows"
                raise RejectedRequest(ErrorCode.INVALID_PARTITIONS, f"partitions of {topic} {why}")
            topics[topic] = replace(known or TopicFacts(0), partitions=partitions)
        return topics

    def _add_unregistered(self, topics: dict[str, TopicFacts]) -> None:
        """A leader may count partitions without the registry: partitions that it has assigned exist."""
        highest: dict[str, int] = {}
        for topic, partition in chain.from_iterable(self._before.values()):
            highest[topic] = max(highest.get(topic, 0), partition + 1)
        for topic, assigned in sorted(highest.items()):
            known = topics.get(topic, TopicFacts(0))
            if known.partitions < assigned:
                topics[topic] = replace(known, partitions=assigned)
                self._notes.append(
                    f"topic {topic} is registered with {known.partitions} partitions, and {assigned} are assigned: the "
                    f"plan counts {assigned}; name its partitions if it has more"
                )

    def _planned_group(self) -> GroupSubscription:
        """The members that stay, with their claims, and then those that join."""
        described = self._described
        try:
            group = group_subscription(_generation(described), self._topics)
        except MalformedMetadata as error:
            raise _invalid(f"the subscription of a member cannot be read: {error}") from None
        now = [
            replace(member, owned_partitions=self._before[member.member_id], generation=described.generation_id)
            for member in group.members
        ]
        typical = replace(_typical(now), group_instance_id=None, owned_partitions=(), generation=None)
        joining = [
            replace(typical, member_id=member_id) for member_id in _new_ids(self._hypothesis.more_members, self._before)
        ]
        staying = [member for member in now if member.member_id not in self._leaving]
        return replace(group, members=[*staying, *joining], generation_id=described.generation_id + 1)

    # --- the outcome -------------------------------------------------------------------------------

    def _foreseen(self) -> Forecast:
        if not self._group.members:
            return _NOTHING
        try:
            foreseen = forecast(self._name, self._group, self._eager() if self._cooperative else ())
        except Exception as error:  # A strategy of the user's own may fail in any way.
            why = f"strategy {self._name} failed: {type(error).__name__}: {error}"
            raise RejectedRequest(ErrorCode.ASSIGNMENT_FAILED, why) from error
        return replace(foreseen, rounds=0) if self._is_taken_at_once(foreseen) else foreseen

    def _assigned(self, share: Sequence[TopicPartition]) -> list[TopicPartition]:
        """What the coordinator assigns of a share: it leaves out the partitions in quarantine (ADR 81)."""
        return [each for each in share if unit_of(each) not in self._described.quarantined]

    def _is_taken_at_once(self, foreseen: Forecast) -> bool:
        """A change of topics that takes nothing from any member comes into effect by a resync, without a join phase."""
        if self._leaving or self._added or self._changes_strategy:
            return False
        return bool(self._hypothesis.partitions) and not self._cooperative and not any(foreseen.revoked.values())

    @property
    def _changes_strategy(self) -> bool:
        return self._hypothesis.strategy not in ("", self._described.protocol_name)

    def _eager(self) -> frozenset[str]:
        """Members that give up all that they hold before they join, as they also list an eager strategy."""
        if self._changes_strategy:
            return frozenset()
        return frozenset(each.member_id for each in self._described.members if not all(map(_holds_on, each.protocols)))

    def _planned_members(self, after: AnyShares, foreseen: Forecast) -> Iterable[PlannedMember]:
        eager = self._eager()
        for member in self._described.members:
            member_id, held = member.member_id, self._before[member.member_id]
            stays = member_id not in self._leaving
            pauses: Collection[TopicPartition] = ()
            if stays and foreseen.rounds:
                pauses = foreseen.revoked[member_id] if self._cooperative and member_id not in eager else held
            yield PlannedMember(
                member_id,
                member.group_instance_id,
                STAYS if stays else LEAVES,
                _grouped(held),
                _grouped(after.get(member_id, ())),
                _grouped(pauses),
            )
        for new in self._added:
            yield PlannedMember(new.member_id, None, JOINS, after=_grouped(after[new.member_id]))

    def _unowned(self, after: AnyShares) -> list[TopicPartition]:
        owned = set(chain.from_iterable(after.values()))
        every = (TopicPartition(name, n) for name, facts in self._topics.items() for n in range(facts.partitions))
        return [each for each in every if each not in owned]

    def _note_assumptions(self) -> None:
        if self._described.quarantined:
            names = ", ".join(self._described.quarantined)
            self._notes.append(f"quarantined, and so assigned to no member until it is released: {names}")
        if self._added:
            self._notes.append(
                "the ids of members that join are made up; real ones may decide ties between equal members otherwise"
            )
        name, members = self._hypothesis.strategy, self._described.members
        if lacking := [each for each in members if name and name not in each.protocols]:
            self._notes.append(
                f"{len(lacking)} of {len(members)} members do not list {name}: the rolling restarts that change this "
                "are not in the plan"
            )
        if strategy(self._name).weighs and self._group.partition_weights:
            self._notes.append("the strategy uses weights; the imbalance counts partitions")


def _invalid(detail: str) -> RejectedRequest:
    return RejectedRequest(ErrorCode.INVALID_REQUEST, detail)


def _shares_now(group: DescribeReply) -> dict[str, tuple[TopicPartition, ...]]:
    try:
        return {member.member_id: assigned_partitions(member.assignment) for member in group.members}
    except MalformedMetadata as error:
        raise _invalid(f"the assignment of a member cannot be read: {error}") from None


def _strategy_of(hypothesis: Hypothesis, group: DescribeReply) -> str:
    """The name of the planned strategy, without the prefix of those that the server assigns by."""
    name = hypothesis.strategy or group.protocol_name
    plain = name.removeprefix(PREFIX)
    try:
        strategy(plain)
    except UnknownAssignor as error:
        if not hypothesis.strategy:
            why = f"the members assign by '{shown(name)}', which this program does not know: name another strategy"
            raise _invalid(f"strategy is missing: {why}") from None
        is_known = plain.partition("(")[0] in STRATEGIES
        raise _invalid(f"strategy: {error if is_known else unknown('strategy', plain, STRATEGIES)}") from None
    if plain != name and not assigns(name):
        raise _invalid(f"strategy must not be '{shown(name)}': the server assigns by no cooperative strategy")
    return plain


def _leaving(hypothesis: Hypothesis, group: DescribeReply) -> frozenset[str]:
    """The member ids that `without` names."""
    ids = {each.group_instance_id: each.member_id for each in group.members if each.group_instance_id is not None}
    ids |= {each.member_id: each.member_id for each in group.members}
    for place, name in enumerate(hypothesis.without):
        if name not in ids:
            raise _invalid(f"without[{place}]: {unknown('member', name, ids)}")
    return frozenset(ids[name] for name in hypothesis.without)


def _generation(group: DescribeReply) -> Generation:
    members = [JoinedWith(each.member_id, each.group_instance_id, each.metadata) for each in group.members]
    return Generation(group.generation_id, group.leader_id, group.protocol_name, members)


def _wants(group: DescribeReply) -> Callable[[str], bool]:
    try:
        return wants_topic(_generation(group))
    except MalformedMetadata as error:
        raise _invalid(f"the subscription of a member cannot be read: {error}") from None


def _typical(members: Sequence[MemberSubscription]) -> MemberSubscription:
    """The member that has joined first of those with the topics that most members have."""
    topics = [frozenset(member.topics) for member in members]
    ((most, _),) = Counter(topics).most_common(1)
    return members[topics.index(most)]


def _new_ids(number: int, taken: Collection[str]) -> list[str]:
    free = (name for place in count(1) if (name := f"new-{place}") not in taken)
    return [next(free) for _ in range(number)]


def _holds_on(protocol_name: str) -> bool:
    """Whether members that list no other strategies keep what they hold while they join."""
    try:
        return strategy(protocol_name).cooperative
    except UnknownAssignor:
        return False


def _grouped(partitions: Collection[TopicPartition]) -> tuple[TopicPartitions, ...]:
    return tuple(TopicPartitions(topic, tuple(numbers)) for topic, numbers in by_topic(partitions).items())


def _grouped_moves(moves: Sequence[Move]) -> tuple[PlannedMove, ...]:
    ways: dict[tuple[str, str, str], list[int]] = {}
    for (topic, partition), source, target in moves:
        ways.setdefault((topic, source, target), []).append(partition)
    return tuple(
        PlannedMove(topic, tuple(partitions), source, target)
        for (topic, source, target), partitions in sorted(ways.items())
    )
