"""Strategies of the user's own: registered, checked, withheld from where they are cooperative; and rules by topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint

import pytest

from rota.core.assignors import (
    STRATEGIES,
    BrokenStrategy,
    GroupAssignment,
    GroupSubscription,
    InvalidAssignment,
    MemberSubscription,
    PartitionStrategy,
    Shares,
    TopicPartition,
    UnknownAssignor,
    UserData,
    assign,
    assign_group,
    register_entry_points,
    register_strategy,
    strategy,
)
from tests.support.strategies import registered_for_one_test

TOPICS = {"t": 4}
ANN, BOB = MemberSubscription("ann", topics=["t"]), MemberSubscription("bob", topics=["t"])
ALL = tuple(TopicPartition("t", number) for number in range(4))


@dataclass
class Fixed(PartitionStrategy):
    """Assigns what the test says."""

    name: str = "fixed"
    cooperative: bool = False
    exclusive: bool = True
    shares: Mapping[str, Sequence[TopicPartition]] = field(default_factory=dict)
    user_data: Mapping[str, UserData] = field(default_factory=dict)

    def assign(self, group: GroupSubscription) -> GroupAssignment:
        return GroupAssignment(self.shares, self.user_data)


class FewestFirst(PartitionStrategy):
    """The member that says the lowest number in its user data gets everything."""

    name = "fewest-first"

    def assign(self, group: GroupSubscription) -> GroupAssignment:
        chosen = min(group.members, key=lambda member: member.user_data.data if member.user_data else b"")
        places = [TopicPartition(topic, n) for topic, count in group.partitions_per_topic.items() for n in range(count)]
        return GroupAssignment({chosen.member_id: places}, {chosen.member_id: UserData(b"all", 3)})


@pytest.fixture(autouse=True)
def _one_test() -> Iterator[None]:
    with registered_for_one_test():
        yield


def test_a_registered_strategy_assigns_by_its_name() -> None:
    register_strategy(FewestFirst())
    members = [
        MemberSubscription("ann", topics=["t"], user_data=UserData(b"2")),
        MemberSubscription("bob", topics=["t"], user_data=UserData(b"1")),
    ]

    assigned = assign_group("fewest-first", GroupSubscription(TOPICS, members))

    assert assigned.shares == {"ann": [], "bob": list(ALL)}
    assert assigned.user_data == {"bob": UserData(b"all", 3)}
    assert assign("fewest-first", TOPICS, members) == assigned.shares


def test_the_same_strategy_may_be_registered_twice_and_no_other() -> None:
    own = FewestFirst()
    register_strategy(own)
    register_strategy(own)

    with pytest.raises(BrokenStrategy, match="there is a strategy 'fewest-first' already"):
        register_strategy(FewestFirst())
    with pytest.raises(BrokenStrategy, match="there is a strategy 'range' already"):
        register_strategy(Fixed("range"))


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (Fixed("Mine"), "lower-case letters and hyphens, not 'Mine'"),
        (Fixed("mine(2)"), "not 'mine\\(2\\)'"),
        (Fixed("server:mine"), "not 'server:mine'"),
        (object(), "not None"),
        (Fixed("mine", cooperative=True, exclusive=False), "cannot be cooperative"),
        (type("Half", (), {"name": "half", "assign": print})(), "no method 'subscription_user_data'"),
        (Fixed("mine", cooperative=None), "must be True or False"),  # type: ignore[arg-type]
    ],
    ids=["upper case", "options", "colon", "no name", "copies", "no method", "no bool"],
)
def test_what_cannot_be_a_strategy_is_not_registered(own: PartitionStrategy, why: str) -> None:
    before = dict(STRATEGIES)

    with pytest.raises(BrokenStrategy, match=why):
        register_strategy(own)

    assert before == STRATEGIES


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (Fixed(shares={"eve": []}), "no member of the group has the id eve"),
        (Fixed(user_data={"eve": UserData(b"")}), "no member of the group has the id eve"),
        (Fixed(shares={"ann": [TopicPartition("u", 0)]}), "ann does not subscribe to 'u'"),
        (Fixed(shares={"ann": [TopicPartition("t", 4)]}), "topic 't' has no partition 4"),
        (Fixed(shares={"ann": [TopicPartition("t", -1)]}), "topic 't' has no partition -1"),
        (Fixed(shares={"ann": ALL, "bob": ALL}), "assigned more than once: t-0, t-1, t-2 and 1 more"),
        (Fixed(user_data={"ann": b"raw"}), "must be a UserData"),  # type: ignore[dict-item]
    ],
    ids=["stranger", "stranger's data", "topic", "too high", "negative", "twice", "raw bytes"],
)
def test_an_outcome_that_is_no_assignment_is_named(own: Fixed, why: str) -> None:
    register_strategy(own)

    with pytest.raises(InvalidAssignment, match=f"strategy 'fixed': .*{why}"):
        assign("fixed", TOPICS, [ANN, BOB])


def test_a_strategy_that_returns_something_else_is_named() -> None:
    class Forgetful(Fixed):
        def assign(self, group: GroupSubscription) -> GroupAssignment:
            return None  # type: ignore[return-value]

    register_strategy(Forgetful())

    with pytest.raises(InvalidAssignment, match="strategy 'fixed' returned NoneType"):
        assign("fixed", TOPICS, [ANN])


def test_copies_are_for_strategies_that_say_so() -> None:
    register_strategy(Fixed(exclusive=False, shares={"ann": ALL, "bob": ALL}))

    assert assign("fixed", TOPICS, [ANN, BOB]) == {"ann": list(ALL), "bob": list(ALL)}


def test_a_cooperative_one_gives_what_moves_in_a_second_round() -> None:
    register_strategy(Fixed(cooperative=True, shares={"ann": ALL[:2], "bob": ALL[2:]}))
    ann = MemberSubscription("ann", topics=["t"], owned_partitions=ALL, generation=1)

    first = assign("fixed", TOPICS, [ann, BOB])
    holds_less = MemberSubscription("ann", topics=["t"], owned_partitions=first["ann"], generation=2)

    assert first == {"ann": list(ALL[:2]), "bob": []}
    assert assign("fixed", TOPICS, [holds_less, BOB]) == {"ann": list(ALL[:2]), "bob": list(ALL[2:])}
    assert strategy("fixed").cooperative


def test_packages_offer_strategies_by_an_entry_point() -> None:
    point = EntryPoint("mine", f"{__name__}:FewestFirst", "rota.strategies")

    assert register_entry_points([point]) == ["fewest-first"]
    assert register_entry_points([point]) == []
    with pytest.raises(BrokenStrategy):
        register_entry_points([EntryPoint("other", "json:dumps", "rota.strategies")])


# --- rules by topic -----------------------------------------------------------------------------


MANY = {"clicks": 4, "views": 4, "log-a": 3, "log-b": 3}
RULES = "by-topic(clicks=copartitioned, views=copartitioned, log-*=roundrobin)"


def members_of(*names: str) -> list[MemberSubscription]:
    return [MemberSubscription(name, topics=list(MANY)) for name in names]


def holders(shares: Shares, topic: str) -> dict[int, str]:
    return {place.partition: name for name, share in shares.items() for place in share if place.topic == topic}


def test_each_topic_is_assigned_by_the_strategy_of_its_rule() -> None:
    shares = assign(RULES, MANY, members_of("ann", "bob"))

    logs = [MemberSubscription(name, topics=["log-a", "log-b"]) for name in ("ann", "bob")]
    by_roundrobin = assign("roundrobin", {"log-a": 3, "log-b": 3}, logs)
    assert holders(shares, "clicks") == holders(shares, "views")
    assert len(set(holders(shares, "clicks").values())) == 2
    assert {name: [each for each in share if each.topic.startswith("log")] for name, share in shares.items()} == (
        by_roundrobin
    )


def test_the_first_matching_rule_counts_or_no_member() -> None:
    shares = assign("by-topic(log-a=range,log-*=roundrobin)", MANY, members_of("ann", "bob"))

    assert {place.topic for share in shares.values() for place in share} == {"log-a", "log-b"}
    assert holders(shares, "log-a") == {0: "ann", 1: "ann", 2: "bob"}


def test_rules_may_be_cooperative_as_a_whole() -> None:
    holds_all = MemberSubscription(
        "ann", topics=["clicks"], owned_partitions=[TopicPartition("clicks", n) for n in range(4)], generation=1
    )
    joins = MemberSubscription("bob", topics=["clicks"])

    shares = assign("cooperative-by-topic(*=sticky)", {"clicks": 4}, [holds_all, joins])

    assert (len(shares["ann"]), shares["bob"]) == (2, [])


@pytest.mark.parametrize(
    "name",
    [
        "by-topic",
        "by-topic()",
        "by-topic(clicks)",
        "by-topic(=range)",
        "by-topic(clicks=none-such)",
        "by-topic(clicks=cooperative-sticky)",
        "by-topic(clicks=by-topic)",
    ],
)
def test_wrong_rules_are_refused_with_an_example(name: str) -> None:
    with pytest.raises(UnknownAssignor, match="by-topic"):
        strategy(name)


def test_rules_name_no_strategy_of_the_users_own() -> None:
    """Its user data would be lost."""
    register_strategy(FewestFirst())

    with pytest.raises(UnknownAssignor, match="with built-in strategies"):
        strategy("by-topic(*=fewest-first)")
