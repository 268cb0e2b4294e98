"""Listings: one page of several pages, ordered, cut at the limit, and never a part that looks like the whole."""

from __future__ import annotations

import pytest

from rota.group.topics import version_of_all
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import ListedGroup, ListedTopic, ListGroups, ListReply, ListTopics, ListTopicsReply, Reply
from rota.replica.listing import page_of_all, page_of_shards
from rota.replica.ports import Answer


def groups(*group_ids: str, more: bool = False) -> ListReply:
    return ListReply(groups=tuple(ListedGroup(each, "Stable", "worker", 1, 1) for each in group_ids), more=more)


def topics(*names: str, more: bool = False, version: str = "1") -> ListTopicsReply:
    return ListTopicsReply(topics=tuple(ListedTopic(each, 1) for each in names), more=more, version=version)


def names(reply: Reply) -> list[str]:
    if isinstance(reply, ListReply):
        return [group.group_id for group in reply.groups]
    assert isinstance(reply, ListTopicsReply)
    return [topic.topic for topic in reply.topics]


def test_the_page_of_a_replica_names_its_shards() -> None:
    answer = page_of_shards(ListGroups("default"), {3: groups("b"), 5: groups("a", "c")})

    assert names(answer.reply) == ["a", "b", "c"]
    assert answer.shards == (3, 5)


def test_the_page_of_all_topics_has_the_version_of_all() -> None:
    answers = [Answer(topics("b", version="a"), shards=(1,)), Answer(topics("a", version="2"), shards=(0,))]
    reply = page_of_all(ListTopics("default"), answers, 2).reply

    assert isinstance(reply, ListTopicsReply)
    assert names(reply) == ["a", "b"]
    assert reply.version == version_of_all(["a", "2"])


@pytest.mark.parametrize("request_", [ListGroups("default", limit=2), ListTopics("default", limit=2)])
@pytest.mark.parametrize(
    ("first", "second", "more", "page", "says_more"),
    [
        pytest.param(("a",), ("b",), False, ["a", "b"], False, id="all fit"),
        pytest.param(("b", "c"), ("a",), False, ["a", "b"], True, id="too many"),
        pytest.param(("a",), (), True, ["a"], True, id="a part has more"),
        pytest.param((), (), False, [], False, id="nothing"),
    ],
)
def test_a_page_says_whether_there_is_more(
    request_: ListGroups | ListTopics,
    first: tuple[str, ...],
    second: tuple[str, ...],
    more: bool,
    page: list[str],
    says_more: bool,
) -> None:
    make = groups if isinstance(request_, ListGroups) else topics
    reply = page_of_shards(request_, {0: make(*first, more=more), 1: make(*second)}).reply

    assert isinstance(reply, ListReply | ListTopicsReply)
    assert (names(reply), reply.more) == (page, says_more)


@pytest.mark.parametrize("shards", [((0,), ()), ((0,), (0,)), ((0, 1), (1,)), ((0,), (2,))])
def test_a_page_that_lacks_a_shard_or_has_one_twice_is_refused(shards: tuple[tuple[int, ...], ...]) -> None:
    answers = [Answer(groups("a"), shards=each) for each in shards]
    refused = page_of_all(ListGroups("default"), answers, 2).reply

    assert refused.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert refused.detail == "not every shard is loaded"


def test_a_refusal_of_one_replica_refuses_the_page() -> None:
    refusal = ListReply(ErrorCode.INVALID_REQUEST, "no such state")

    assert page_of_all(ListGroups("default"), [Answer(groups(), shards=(0,)), Answer(refusal)], 1).reply is refusal
