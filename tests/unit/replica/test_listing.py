"""Listings: one page of several pages, ordered, cut at the limit, and never a part that looks like the whole."""

from __future__ import annotations

import pytest

from rota.core.replica.forwarding import page_of_all, page_of_shards
from rota.core.replica.ports import Answer
from rota.protocol.messages import ForgetTopic, ListedGroup, ListGroups, ListReply, Reply, TopicReply


def groups(*group_ids: str, more: bool = False) -> ListReply:
    listed = tuple(ListedGroup(each, "Stable", "worker", 1, 1) for each in group_ids)
    return ListReply(next_after=group_ids[-1] if more else None, groups=listed)


def names(reply: Reply) -> list[str]:
    assert isinstance(reply, ListReply)
    return [group.group_id for group in reply.groups]


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
