"""The registry of topics (protocol.md §3): counts only grow, and each content has a version of its own."""

from __future__ import annotations

import pytest

from rota.group.topics import version_of_all
from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from tests.unit.group.driver import Core, an_empty_shard

NS = "default"


def put(core: Core, topic: str = "t", partitions: int = 3, **attributes: str) -> m.TopicReply:
    reply: m.TopicReply = core.ask(m.PutTopic(NS, topic, partitions, tuple(attributes.items())))
    return reply


def listed(core: Core, **asked: object) -> m.ListTopicsReply:
    reply: m.ListTopicsReply = core.ask(m.ListTopics(NS, **asked))  # type: ignore[arg-type]
    return reply


def test_a_topic_is_answered_as_it_was_put() -> None:
    core = an_empty_shard()
    reply = put(core, partitions=3, owner="billing")

    assert reply.version
    assert reply == m.TopicReply(topic="t", partitions=3, attributes=(("owner", "billing"),), version=reply.version)
    assert core.ask(m.GetTopic(NS, "t")) == reply
    assert core.ask(m.GetTopic(NS, "other")).error is ErrorCode.UNKNOWN_TOPIC


@pytest.mark.parametrize(("partitions", "detail"), [(0, "partitions must be 1 to 5"), (6, "partitions must be 1 to 5")])
def test_a_count_out_of_bounds_is_refused(partitions: int, detail: str) -> None:
    reply = put(an_empty_shard(Limits(max_topic_partitions=5)), partitions=partitions)

    assert (reply.error, reply.detail) == (ErrorCode.INVALID_PARTITIONS, detail)


@pytest.mark.parametrize("partitions", [1, 5])
def test_the_bounds_of_a_count_are_allowed(partitions: int) -> None:
    assert put(an_empty_shard(Limits(max_topic_partitions=5)), partitions=partitions).error is ErrorCode.NONE


def test_a_count_does_not_shrink() -> None:
    core = an_empty_shard()
    put(core, partitions=3)
    reply = put(core, partitions=2)

    assert (reply.error, reply.detail) == (
        ErrorCode.INVALID_PARTITIONS,
        "t has 3 partitions, and a count only grows",
    )
    assert put(core, partitions=3).error is ErrorCode.NONE
    assert put(core, partitions=4).partitions == 4


def test_the_same_content_again_changes_nothing() -> None:
    core = an_empty_shard()
    first = put(core, owner="a")
    assert put(core, owner="a") == first

    assert core.kinds() == ["topic_changed"]
    assert put(core, owner="b").attributes == (("owner", "b"),)


def test_each_change_is_one_line_with_its_revision() -> None:
    core = an_empty_shard()
    put(core)
    put(core, "u")
    core.ask(m.DeleteTopic(NS, "t"))

    changes = [(e.namespace, e.group_id, e.generation_id, e.at_ms, e.record) for e in core.journal]
    assert [change[:4] for change in changes] == [(NS, "", 0, core.now_ms)] * 3
    assert [(r.topic, r.partitions, r.reason, r.revision) for *_, r in changes] == [  # type: ignore[union-attr]
        ("t", 3, "", 1),
        ("u", 3, "", 2),
        ("t", 0, "deleted on request", 3),
    ]


def test_a_deletion_returns_the_topic_and_makes_it_unknown() -> None:
    core = an_empty_shard()
    was = put(core, owner="a")

    assert core.ask(m.DeleteTopic(NS, "t")) == was
    assert core.ask(m.DeleteTopic(NS, "t")).error is ErrorCode.UNKNOWN_TOPIC
    assert core.kinds() == ["topic_changed", "topic_changed"]


def test_a_version_does_not_come_back_with_the_content() -> None:
    core = an_empty_shard()
    versions = [put(core).version, put(core, owner="a").version, put(core).version]
    core.ask(m.DeleteTopic(NS, "t"))
    versions.append(put(core).version)

    assert len(set(versions)) == 4


def test_the_version_depends_on_the_topic_and_its_count() -> None:
    """Topics of different shards may have the same revision."""
    versions = {put(an_empty_shard(), topic, partitions).version for topic in ("t", "u") for partitions in (1, 2)}

    assert len(versions) == 4


def test_versions_are_short_and_the_same_everywhere() -> None:
    """A member waits with a version at any replica, of this release or the next."""
    assert put(an_empty_shard(), owner="a").version == "6a9aaf6a68e493ea"


def test_a_listing_has_the_topics_of_the_namespace_in_order() -> None:
    core = an_empty_shard()
    put(core, "b")
    put(core, "a")
    core.ask(m.PutTopic("other", "c", 1))
    reply = listed(core)

    assert [topic.topic for topic in reply.topics] == ["a", "b"]
    assert (reply.topics[0].partitions, reply.more) == (3, False)
    assert [topic.topic for topic in listed(core, after="a").topics] == ["b"]
    page = listed(core, limit=1)
    assert ([topic.topic for topic in page.topics], page.more) == (["a"], True)
    assert listed(core, limit=2).more is False


def test_the_version_of_a_page_is_of_all_topics() -> None:
    core = an_empty_shard()
    empty = listed(core).version
    put(core, "a")
    put(core, "b")
    both = listed(core).version
    assert listed(core, after="a", limit=1).version == both
    core.ask(m.DeleteTopic(NS, "a"))
    core.ask(m.DeleteTopic(NS, "b"))

    assert len({empty, both, listed(core).version}) == 3, "it does not come back when all are deleted"


def test_the_version_of_no_topics_is_the_same_everywhere() -> None:
    assert listed(an_empty_shard()).version == "9d37e282dff85f7c"


def test_shards_without_topics_have_different_versions() -> None:
    one, two = an_empty_shard(), an_empty_shard()
    two.shard.shard_id = 1

    assert listed(one).version != listed(two).version


def test_versions_of_parts_add_up_to_one() -> None:
    assert version_of_all(["ffffffffffffffff", "2"]) == "0000000000000001"
    assert version_of_all(["", ""]) == "0000000000000000"
