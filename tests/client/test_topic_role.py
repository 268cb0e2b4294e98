"""What a member says for each strategy, and where its leader computes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import rota
from rota.client import TopicFacts, consumer_protocol
from rota.client.consumer_protocol import Partitions, TopicRole
from rota.core.assignors import TopicPartition
from rota.core.membership import Assigned, JoinedAsLeader
from rota.core.types.consumer import Assignment, decode_assignment, decode_subscription, encode_assignment
from rota.protocol.messages import JoinedMember


def leading(role: TopicRole) -> JoinedAsLeader:
    (protocol,) = role.protocols(None, -1)
    return JoinedAsLeader(1, protocol.name, (JoinedMember("m", None, protocol.metadata),))


async def led_together(strategy: str, *roles: TopicRole) -> list[Partitions]:
    """What each gets where the first one leads."""
    said = [next(each.metadata for each in role.protocols(None, -1) if each.name == strategy) for role in roles]
    members = tuple(JoinedMember(f"m{index}", None, metadata) for index, metadata in enumerate(said))
    plan = await roles[0].assign(JoinedAsLeader(1, strategy, members))
    return [decode_assignment(plan[member.member_id]).partitions for member in members]


@pytest.mark.parametrize(("partitions", "on_the_loop"), [(10, True), (10_000, False)])
async def test_a_large_assignment_is_computed_off_the_event_loop(
    partitions: int, on_the_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    plan = consumer_protocol._distribute

    def distribute_noting_the_thread(*generation: Any) -> Any:
        threads.append(threading.get_ident())
        return plan(*generation)

    monkeypatch.setattr(consumer_protocol, "_distribute", distribute_noting_the_thread)
    role = TopicRole(("range",), ("t",), {"t": partitions})

    assignments = await role.assign(leading(role))

    assert len(decode_assignment(assignments["m"]).partitions) == partitions
    assert (threads == [threading.get_ident()]) is on_the_loop


def test_members_send_what_they_hold_where_the_strategy_asks() -> None:
    held = (TopicPartition("t", 3),)
    names = ("range", "sticky(prefer=stickiness)", "redundant(3)", "weighted(max_moves=5)")
    role = TopicRole(names, ("t",), {})

    said = {each.name: decode_subscription(each.metadata).owned_partitions for each in role.protocols(held, 7)}

    assert said == {"range": (), names[1]: held, names[2]: held, names[3]: held}


def test_an_eager_member_claims_nothing_when_cooperative() -> None:
    held = (TopicPartition("t", 3),)
    listed = ("cooperative-sticky", "sticky", "range")

    def claims(*names: str) -> dict[str, object]:
        said = TopicRole(names, ("t",), {}).protocols(held, 7)
        return {each.name: decode_subscription(each.metadata).owned_partitions for each in said}

    assert claims(*listed) == {"cooperative-sticky": (), "sticky": held, "range": ()}
    assert claims("cooperative-sticky") == {"cooperative-sticky": held}


def test_only_cooperative_members_keep_shares_while_they_join() -> None:
    def is_cooperative(*names: str) -> bool:
        return TopicRole(names, ("t",), {}).is_cooperative

    assert is_cooperative("cooperative-sticky", "cooperative-sticky(prefer=stickiness)")
    assert not is_cooperative("cooperative-sticky", "range")


async def test_weights_racks_and_capacities_count() -> None:
    topics = {"t": TopicFacts(6, {"weights": "1,1,1,1,1,1", "racks": "a,a,b,b,c,c"})}
    small = TopicRole(("weighted", "rack-aware"), ("t",), topics, rack_id="a")
    large = TopicRole(("weighted", "rack-aware"), ("t",), topics, rack_id="b", capacity=2)

    by_weight = await led_together("weighted", small, large)
    by_rack = await led_together("rack-aware", small, large)

    assert [len(share) for share in by_weight] == [2, 4]
    assert {("t", 0), ("t", 1)} <= set(by_rack[0])
    assert {("t", 2), ("t", 3)} <= set(by_rack[1])


@pytest.mark.parametrize("capacity", [0.0, -1.0, float("inf"), float("nan")])
def test_a_member_must_carry_something(capacity: float) -> None:
    with pytest.raises(ValueError, match="capacity"):
        TopicRole(("weighted",), ("t",), {}, capacity=capacity)


@pytest.mark.parametrize(
    ("strategies", "complaint"),
    [
        ((), "at least one strategy"),
        (("range", "sticky", "range"), "listed twice"),
        (("sticki",), "no assignor 'sticki'"),
        (("range", "server:redundant(x=1)"), "does not assign by"),
    ],
)
def test_strategies_that_no_group_could_use_are_refused_at_once(strategies: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        rota.connect("http://127.0.0.1:9").consumer("g", "t", strategies)


def test_partitions_of_unsubscribed_topics_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    given = (TopicPartition("t", 1), TopicPartition("u", 0), TopicPartition("u", 1))
    role = TopicRole(("range",), ("t",), {})

    share = role.read(Assigned(7, "range", "m-1", False, encode_assignment(Assignment(given))))

    assert share == given[:1]
    assert "leader m-1 assigned 2 partitions of topics that this member does not subscribe to (u)" in caplog.text
