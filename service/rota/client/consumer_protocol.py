"""The `consumer` protocol type for members: subscribe to topics, lead with a named assignor, read the own
partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from itertools import chain
from typing import TypeAlias

from rota.client.callbacks import call
from rota.client.roles import Role
from rota.client.topics import RegisteredTopics, TopicListing
from rota.core.assignors import (
    ENTRY_POINT_GROUP,
    STRATEGIES,
    GroupSubscription,
    MemberSubscription,
    OwnAssignment,
    Shares,
    Strategy,
    TopicPartition,
    UnknownAssignor,
    UserData,
    assign_group,
    register_entry_points,
    strategy,
)
from rota.core.membership import Assigned, JoinedAsLeader
from rota.core.types import TopicFacts, server_side
from rota.core.types.consumer import (
    PROTOCOL_TYPE,
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from rota.core.types.registry import SERVER_PREFIX
from rota.core.types.topics import partition_counts, partition_racks, partition_weights
from rota.core.types.wire_format import active_in, encode_user_data, user_data_in
from rota.protocol.messages import DescribeReply, JoinedMember, OffsetToCommit, Protocol

__all__ = ["PROTOCOL_TYPE", "PartitionCounts", "Partitions", "TopicRole"]

Partitions: TypeAlias = tuple[TopicPartition, ...]

_Counts: TypeAlias = Mapping[str, "int | TopicFacts"]
PartitionCounts: TypeAlias = "_Counts | Callable[[Sequence[str]], _Counts | Awaitable[_Counts]]"
"""The partition count of each topic, or a function (plain or async) that the leader calls with these topics.

`TopicFacts` also have the racks and weights of partitions, for strategies that use them.
"""

_log = logging.getLogger(__name__)

INLINE_SIZE = 2_000
"""Number of partitions and members from which an assignment runs in a thread; below, a thread costs more
than it saves.
"""


Claim = tuple[str, TopicPartition]
"""A member, by its instance id if it has one, and a partition that it claims to hold."""

PATIENCE = 2
"""After this many assignments that gave claimants time to revoke withheld partitions, a claim is ignored."""


class WithheldPartitions:
    """Remembers this member's assignments as the leader, and the partitions that it withheld because of claims.

    A cooperative strategy assigns a claimed partition to no other member before its claimant has revoked it. A claim is
    false if it names a generation in which this leader did not assign the partition to its claimant, or a future one.
    An older claim may be true, if its claimant has not received the last assignment. It is accepted until `PATIENCE`
    assignments have not changed it.
    """

    def __init__(self) -> None:
        self._generation_id = -1
        self._received_id = -1
        """The last generation in which another leader assigned a share to this member."""
        self._given: dict[str, Sequence[TopicPartition]] = {}
        self._withheld: tuple[Claim, ...] = ()
        self._unchanged: Counter[Claim] = Counter()

    def believed(self, generation_id: int, members: Sequence[MemberSubscription]) -> list[MemberSubscription]:
        """Return the members for the strategy in the generation `generation_id`, without false claims."""
        return [
            member if claims is member.owned_partitions else replace(member, owned_partitions=claims)
            for member in members
            for claims in [self._credible(generation_id, member)]
        ]

    def note_assignment(
        self,
        generation_id: int,
        members: Sequence[MemberSubscription],
        shares: Mapping[str, Sequence[TopicPartition]],
    ) -> None:
        """Note that this member has assigned a generation.

        If it already had a share of that generation, another member has assigned it, and the coordinator accepts no
        second assignment while the group is frozen: the others' assignments are then unknown.
        """
        given = {_identity(member): shares.get(member.member_id, ()) for member in members}
        if generation_id == self._generation_id:
            # After a second assignment, the coordinator may have accepted either of the two.
            given = {identity: (*former, *given.get(identity, ())) for identity, former in self._given.items()}
        if generation_id == self._received_id:
            generation_id, given = -1, {}
        self._generation_id, self._given = generation_id, given
        self._withheld = tuple(
            (_identity(member), each)
            for member in members
            for each in {*member.owned_partitions}.difference(shares.get(member.member_id, ()))
        )
        self._unchanged = Counter({claim: self._unchanged[claim] for claim in self._withheld if self._unchanged[claim]})

    def note_received(self, generation_id: int) -> None:
        """Note that this member has received its share of a generation."""
        if generation_id != self._generation_id:
            self._received_id = generation_id

    def note_rest(self) -> None:
        """Note that the claimants have had time to revoke the withheld partitions."""
        self._unchanged.update(self._withheld)

    def _credible(self, generation_id: int, member: MemberSubscription) -> Collection[TopicPartition]:
        claims, identity = member.owned_partitions, _identity(member)
        if member.claim_generation >= generation_id:
            return ()
        if member.claim_generation == self._generation_id:
            given = set(self._given.get(identity, ()))
            claims = claims if given.issuperset(claims) else tuple(each for each in claims if each in given)
        if self._unchanged:
            claims = tuple(each for each in claims if self._unchanged[identity, each] < PATIENCE)
        return claims


def _identity(member: MemberSubscription) -> str:
    """Return an identity that survives the restart of a static member."""
    return member.group_instance_id or member.member_id


@dataclass(frozen=True, slots=True)
class Plan:
    """The assignment of a generation that this member leads: its own, or one that it has read after a restart."""

    generation: JoinedAsLeader
    subscribed: tuple[str, ...]
    """The topics to which members subscribe, including topics that are not registered."""
    topics: Mapping[str, TopicFacts] | None
    """The known facts of these topics; None if another process made the assignment."""
    shares: Mapping[str, Sequence[TopicPartition]]
    user_data: Mapping[str, UserData] = field(default_factory=dict)
    active: Mapping[str, Sequence[TopicPartition]] = field(default_factory=dict)
    """The partitions of which each member has the active copy; empty if there are no copies."""

    def encoded(self) -> dict[str, bytes]:
        said = {each: encode_user_data(self.user_data.get(each), active=self.active.get(each)) for each in self.shares}
        return {each: encode_assignment(Assignment(tuple(share), said[each])) for each, share in self.shares.items()}

    def is_about(self, topics: Mapping[str, TopicFacts]) -> bool:
        """Return whether all facts that strategies use are the same; other attributes do not matter here."""
        return self.topics is not None and _facts_in_use(self.topics) == _facts_in_use(topics)

    def keeps_all_of(self, former: Plan) -> bool:
        """Return whether each member keeps everything that it was assigned in `former`."""
        return all(set(share) <= set(self.shares.get(member_id, ())) for member_id, share in former.shares.items())

    def is_same_as(self, former: Plan) -> bool:
        """Return whether each member has the same partitions, in any order, the same roles and the same user data."""
        return self.user_data == former.user_data and all(
            {each: set(share) for each, share in these.items()} == {each: set(share) for each, share in those.items()}
            for these, those in ((self.shares, former.shares), (self.active, former.active))
        )

    def subscriptions(self) -> dict[str, frozenset[str]]:
        """The topics of each member, by an identity that survives the restart of a static member."""
        return {
            member.group_instance_id or member.member_id: frozenset(decode_subscription(member.metadata).topics)
            for member in self.generation.members
        }

    def unassigned(self) -> int:
        """The number of partitions of known topics that no member has."""
        known = sum(facts.partitions for facts in (self.topics or {}).values())
        return known - len(set(chain.from_iterable(self.shares.values())))

    def lost_in(self, later: Plan) -> int:
        """Return the number of partitions that members have in this assignment but not in a later one."""
        return sum(len({*share}.difference(later.shares.get(each, ()))) for each, share in self.shares.items())


@dataclass
class TopicRole(Role[Partitions]):
    """Members share the partitions of topics. `topics` may change: members send them in their next join.

    Members keep their partitions while they join only if all strategies that they list are cooperative. So a group
    moves from `range` to `cooperative-sticky` in two rolling restarts, as in Kafka. With a strategy of the server
    (`server:sticky`) the leader does not assign.
    """

    strategies: tuple[str, ...]
    topics: tuple[str, ...]
    counts: PartitionCounts
    rack_id: str | None = None
    capacity: float = 1.0
    topics_debounce_ms: int = 0
    plan: Plan | None = field(default=None, init=False)
    withheld: WithheldPartitions = field(default_factory=WithheldPartitions, init=False)
    active: Partitions | None = field(default=None, init=False)
    """The partitions of which this member has the active copy; None: the strategy assigns no copies."""

    def __post_init__(self) -> None:
        _check_strategies(self.strategies)
        if not 0 < self.capacity < float("inf"):
            raise ValueError(f"a capacity must be above 0, not {self.capacity}")

    @property
    def counts_registered(self) -> bool:
        """Whether the partition counts are those registered with the coordinator."""
        return isinstance(self.counts, RegisteredTopics)

    @property
    def is_cooperative(self) -> bool:  # type: ignore[override]
        return all(_registered(name).cooperative for name in self.strategies)

    def protocols(self, held: Partitions | None, generation_id: int) -> tuple[Protocol, ...]:
        """Return the metadata by protocol. Raises `UnknownAssignor` if there is no such strategy."""
        plain = Subscription(self.topics, rack_id=self.rack_id)
        owned = tuple(partition for partition in held or () if partition.topic in self.topics)
        mindful = replace(plain, owned_partitions=owned, generation_id=generation_id if held is not None else -1)
        return tuple(
            Protocol(name, encode_subscription(replace(said, user_data=self._user_data(name, listed, said))))
            for name, listed in zip(self.strategies, map(_registered, self.strategies), strict=True)
            for said in [mindful if self._claims_under(listed) else plain]
        )

    def _user_data(self, name: str, listed: Strategy, said: Subscription) -> bytes | None:
        own = listed.own.subscription_user_data(self.topics, said.owned_partitions) if listed.own is not None else None
        # A leader uses its own setting; the coordinator needs it in the metadata.
        debounce_ms = self.topics_debounce_ms if name.startswith(SERVER_PREFIX) else 0
        active = [place for place in self.active or () if place in said.owned_partitions]
        return encode_user_data(own, self.capacity, debounce_ms, active or None)

    def is_active(self, place: TopicPartition) -> bool:
        """Return whether this member's copy of a partition is the active one, or the only one."""
        return self.active is None or place in self.active

    def _claims_under(self, listed: Strategy) -> bool:
        """Return whether this member lists its partitions under this strategy.

        An eager member revokes everything before it joins. Under a cooperative strategy it then claims no partitions
        (KIP-429): a claim would withhold them from the others until another revocation.
        """
        return listed.remembers and (self.is_cooperative or not listed.cooperative)

    async def assign(self, generation: JoinedAsLeader) -> dict[str, bytes]:
        """Assign all members. Metadata that cannot be parsed fails the generation for all."""
        subscriptions = [_read_subscription(member) for member in generation.members]
        subscribed = _subscribed(subscriptions)
        topics = await self.count(subscribed)
        if not self.counts_registered and (unknown := [each for each in subscribed if each not in topics]):
            _log.warning(
                "generation %d: members subscribe to topics whose partitions this leader cannot count: %s; "
                "no member is assigned any of them",
                generation.generation_id,
                ", ".join(unknown),
            )
        withheld = self.withheld if self.is_chosen_cooperative(generation.protocol_name) else None
        self.plan, encoded = await _distribute_off_the_loop(generation, topics, subscriptions, withheld)
        return encoded

    def is_chosen_cooperative(self, protocol_name: str) -> bool:
        """Return whether the chosen strategy withholds partitions; this member itself may be eager."""
        return protocol_name in self.strategies and _registered(protocol_name).cooperative

    async def rest(self, plan: Plan) -> int:
        """Return the number of partitions, or copies, that are withheld from a member because others held them."""
        if not _registered(plan.generation.protocol_name).copies:
            return plan.unassigned()
        settled, _ = await self.again(plan, plan.topics or {})
        return plan.unassigned() + plan.lost_in(settled)

    async def again(self, plan: Plan, topics: Mapping[str, TopicFacts]) -> tuple[Plan, dict[str, bytes]]:
        """Return the assignment for the current topics, if each member holds its share."""
        subscriptions = [
            replace(
                _read_subscription(member),
                owned_partitions=plan.shares.get(member.member_id, ()),
                active_partitions=plan.active.get(member.member_id, ()),
            )
            for member in plan.generation.members
        ]
        return await _distribute_off_the_loop(plan.generation, topics, subscriptions)

    def read_back(self, group: DescribeReply) -> Plan:
        """Return a group's current assignment, which usually an earlier process of this member made."""
        members = tuple(JoinedMember(each.member_id, each.group_instance_id, each.metadata) for each in group.members)
        assigned = {each.member_id: decode_assignment(each.assignment) for each in group.members}
        shares = {member_id: each.partitions for member_id, each in assigned.items()}
        user_data = {
            member_id: said
            for member_id, each in assigned.items()
            if (said := user_data_in(each.user_data)) is not None
        }
        active = {
            member_id: roles for member_id, each in assigned.items() if (roles := active_in(each.user_data)) is not None
        }
        generation = JoinedAsLeader(group.generation_id, group.protocol_name, members)
        subscribed = _subscribed([_read_subscription(each) for each in members])
        return Plan(generation, subscribed, None, shares, user_data, active)

    async def count(self, topics: Sequence[str], listing: TopicListing | None = None) -> Mapping[str, TopicFacts]:
        """Return the counts and other facts of these topics, from the listing or read now."""
        if listing is not None and self.counts_registered:
            return {topic: listing.topics[topic] for topic in topics if topic in listing.topics}
        known = await call(self.counts, topics) if callable(self.counts) else self.counts
        return {topic: _facts(known[topic]) for topic in topics if topic in known}

    def read(self, assigned: Assigned) -> Partitions:
        """Return this member's partitions. Those of topics without a subscription are excluded, with a warning."""
        self.withheld.note_received(assigned.generation_id)
        decoded = decode_assignment(assigned.assignment)
        self.active = active_in(decoded.user_data)
        given = sorted(decoded.partitions)
        topics = frozenset(self.topics)
        share = tuple(place for place in given if place.topic in topics)
        if len(share) < len(given):
            _warn_of_unsubscribed(assigned, [place for place in given if place.topic not in topics])
        if assigned.protocol_name in self.strategies and (own := _registered(assigned.protocol_name).own) is not None:
            own.on_assignment(OwnAssignment(assigned.generation_id, share, user_data_in(decoded.user_data)))
        return share

    def concerned(self, held: Partitions | None, offsets: Sequence[OffsetToCommit]) -> Partitions:  # noqa: ARG002
        return tuple(TopicPartition(each.topic, each.partition) for each in offsets)

    def unwanted(self, held: Partitions) -> Partitions:
        return tuple(partition for partition in held if partition.topic not in self.topics)


async def _distribute_off_the_loop(
    generation: JoinedAsLeader,
    topics: Mapping[str, TopicFacts],
    subscriptions: Sequence[MemberSubscription],
    withheld: WithheldPartitions | None = None,
) -> tuple[Plan, dict[str, bytes]]:
    """Assign in a thread if it takes long, because the event loop must send heartbeats meanwhile."""
    size = sum(partition_counts(topics).values()) + len(subscriptions)
    if size <= INLINE_SIZE and strategy(generation.protocol_name).own is None:
        return _distribute(generation, topics, subscriptions, withheld)
    return await asyncio.to_thread(_distribute, generation, topics, subscriptions, withheld)


def _distribute(
    generation: JoinedAsLeader,
    topics: Mapping[str, TopicFacts],
    subscriptions: Sequence[MemberSubscription],
    withheld: WithheldPartitions | None,
) -> tuple[Plan, dict[str, bytes]]:
    """Return the assignment and its bytes by member. With `withheld`, false claims are ignored."""
    counts, racks, weights = _facts_in_use(topics)
    if withheld is not None:
        subscriptions = withheld.believed(generation.generation_id, subscriptions)
    group = GroupSubscription(counts, subscriptions, racks, weights, generation.generation_id)
    assigned = assign_group(generation.protocol_name, group)
    if withheld is not None:
        withheld.note_assignment(generation.generation_id, subscriptions, assigned.shares)
    plan = Plan(generation, _subscribed(subscriptions), topics, assigned.shares, assigned.user_data, assigned.active)
    return plan, plan.encoded()


def _facts_in_use(
    topics: Mapping[str, TopicFacts],
) -> tuple[dict[str, int], dict[str, list[list[str]]], dict[str, list[float]]]:
    """Return the facts of topics that strategies use: counts, racks and weights."""
    return partition_counts(topics), partition_racks(topics), partition_weights(topics)


def _check_strategies(names: Sequence[str]) -> None:
    """Raise `UnknownAssignor` or `ValueError` if no group can be joined with these strategies."""
    if not names:
        raise ValueError("a consumer needs at least one strategy")
    if len(set(names)) < len(names):
        raise ValueError(f"a strategy is listed twice: {', '.join(names)}")
    for name in names:
        _registered(name)


def _warn_of_unsubscribed(assigned: Assigned, left_out: Sequence[TopicPartition]) -> None:
    _log.warning(
        "generation %d: leader %s assigned %d partitions of topics that this member does not subscribe to (%s): "
        "it ignores them, and no member works on them before the next rebalance",
        assigned.generation_id,
        assigned.leader_id,
        len(left_out),
        ", ".join(sorted({place.topic for place in left_out})),
    )


def _facts(known: int | TopicFacts) -> TopicFacts:
    return TopicFacts(known) if isinstance(known, int) else known


def _assigns_elsewhere(*_: object) -> Shares:
    raise NotImplementedError("the server assigns by this strategy, which this process does not know")


_OF_THE_SERVER = Strategy(_assigns_elsewhere, remembers=True)


def _registered(name: str) -> Strategy:
    """Return the strategy of a name, also if the server assigns by it; raise `UnknownAssignor` if it is unknown.

    The server may have its own strategies; it rejects a join with one that it does not have.
    """
    plain = name.removeprefix(SERVER_PREFIX)
    if plain != name and plain.partition("(")[0] not in STRATEGIES:
        return _OF_THE_SERVER
    if plain != name and server_side(PROTOCOL_TYPE, name) is None:
        raise UnknownAssignor(f"the server does not assign by {name!r}")
    return strategy(plain)


def load_strategies(names: Sequence[str]) -> None:
    """Register the strategies of other packages if a name is not known; raise `BrokenStrategy` if one
    cannot be loaded.
    """
    if any(name.removeprefix(SERVER_PREFIX).partition("(")[0] not in STRATEGIES for name in names):
        register_entry_points(entry_points(group=ENTRY_POINT_GROUP))


def _subscribed(subscriptions: Sequence[MemberSubscription]) -> tuple[str, ...]:
    return tuple(sorted({topic for each in subscriptions for topic in each.topics}))


def _read_subscription(member: JoinedMember) -> MemberSubscription:
    return decode_subscription(member.metadata).of_member(member.member_id, member.group_instance_id)
