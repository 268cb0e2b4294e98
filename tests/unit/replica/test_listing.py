"""Listings: one page of several pages, ordered, cut at the limit, and never a part that looks like the whole."""

from __future__ import annotations

import pytest

from rota.core.replica.listing import page_of_all, page_of_shards
from rota.core.replica.ports import Answer
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import ForgetTopic, ListedGroup, ListGroups, ListReply, Reply, TopicReply


def groups(*group_ids: str, more: bool = False) -> ListReply:
    listed = tuple(ListedGroup(each, "Stable", "worker", 1, 1) for each in group_ids)
    return ListReply(next_after=group_ids[-1] if more else None, groups=listed)


def names(reply: Reply) -> list[str]:
    assert isinstance(reply, ListReply)
    return [group.group_id for group in reply.groups]


def test_the_page_of_a_replica_names_its_shards() -> None:
    answer = page_of_shards(ListGroups("default"), {3: groups("b"), 5: groups("a", "c")})

    assert names(answer.reply) == ["a", "b", "c"]
    assert answer.shards == (3, 5)


def test_the_groups_of_a_forgotten_topic_are_added_up() -> None:
    forget = ForgetTopic("default", "orders", 5)
    answers = [Answer(TopicReply(groups=2), shards=(1,)), Answer(TopicReply(groups=3), shards=(0,))]

    assert page_of_all(forget, answers, 2).reply == TopicReply(topic="orders", groups=5)


@pytest.mark.parametrize(
    ("first", "second", "more", "page", "next_after"),
    [
        pytest.param(("a",), ("b",), False, ["a", "b"], None, id="all fit"),
        pytest.param(("b", "c"), ("a",), False, ["a", "b"], "b", id="too many"),
        pytest.param(("a",), (), True, ["a"], "a", id="a part has more"),
        pytest.param((), (), False, [], None, id="nothing"),
    ],
)
def test_a_page_says_whether_there_is_more(
    first: tuple[str, ...],
    second: tuple[str, ...],
    more: bool,
    page: list[str],
    next_after: str | None,
) -> None:
    reply = page_of_shards(ListGroups("default", limit=2), {0: groups(*first, more=more), 1: groups(*second)}).reply

    assert isinstance(reply, ListReply)
    assert (names(reply), reply.next_after) == (page, next_after)


@pytest.mark.parametrize("shards", [((0,), ()), ((0,), (0,)), ((0, 1), (1,)), ((0,), (2,))])
def test_a_page_that_lacks_a_shard_or_has_one_twice_is_refused(shards: tuple[tuple[int, ...], ...]) -> None:
    answers = [Answer(groups("a"), shards=each) for each in shards]
    refused = page_of_all(ListGroups("default"), answers, 2).reply

    assert refused.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert refused.detail == "not every shard is loaded"


def test_a_refusal_of_one_replica_refuses_the_page() -> None:
    refusal = ListReply(ErrorCode.INVALID_REQUEST, "no such state")

    assert page_of_all(ListGroups("default"), [Answer(groups(), shards=(0,)), Answer(refusal)], 1).reply is refusal
