"""The registry of topics (protocol.md §3): counts only grow, and each content has a version of its own."""

from __future__ import annotations

import pytest

from rota.core.group.records import UnitsQuarantined
from rota.core.group.rows import OffsetRow, SideCommit
from rota.core.group.state import Result, record
from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from tests.unit.group.driver import KEY, Core, a_commit, a_fetch, a_leave, a_stable_group, an_empty_shard

NS = "default"


def put(core: Core, topic: str = "t", partitions: int = 3, **attributes: str) -> m.TopicReply:
    reply: m.TopicReply = core.ask(m.PutTopic(NS, topic, partitions, attributes))
    return reply


def put_again(core: Core, topic: str = "t", partitions: int = 3) -> m.TopicReply:
    """Register a topic whose name an earlier one has had, as the coordinator does with one shard."""
    forget_id = put(core, topic, partitions).forget_id
    core.ask(m.ForgetTopic(NS, topic, forget_id))
    reply: m.TopicReply = core.ask(m.PutTopic(NS, topic, partitions, topic_id=forget_id))
    assert reply.error is ErrorCode.NONE
    return reply


def progress(core: Core) -> list[tuple[str, int, int]]:
    return [(each.topic, each.partition, each.offset) for each in core.ask(a_fetch()).offsets]


def listed(core: Core, **asked: object) -> m.ListTopicsReply:
    reply: m.ListTopicsReply = core.ask(m.ListTopics(NS, **asked))  # type: ignore[arg-type]
    return reply


def test_a_topic_is_answered_as_it_was_put() -> None:
    core = an_empty_shard()
    reply = put(core, partitions=3, owner="billing")

    assert reply.version
    assert reply == m.TopicReply(topic="t", partitions=3, attributes={"owner": "billing"}, version=reply.version)
    assert core.ask(m.GetTopic(NS, "t")) == reply
    assert core.ask(m.GetTopic(NS, "other")).error is ErrorCode.UNKNOWN_TOPIC


@pytest.mark.parametrize(("partitions", "detail"), [(0, "partitions must be 1 to 5"), (6, "partitions must be 1 to 5")])
def test_a_count_out_of_bounds_is_refused(partitions: int, detail: str) -> None:
    reply = put(an_empty_shard(Limits(max_topic_partitions=5)), partitions=partitions)

    assert (reply.error, reply.detail) == (ErrorCode.INVALID_PARTITIONS, detail)


def test_the_same_content_again_changes_nothing() -> None:
    core = an_empty_shard()
    first = put(core, owner="a")
    assert put(core, owner="a") == first

    assert core.kinds() == ["topic_changed"]
    assert put(core, owner="b").attributes == {"owner": "b"}


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

    deleted = core.ask(m.DeleteTopic(NS, "t"))

    assert (deleted.topic, deleted.partitions, deleted.attributes) == (was.topic, was.partitions, was.attributes)
    assert core.ask(m.DeleteTopic(NS, "t")).error is ErrorCode.UNKNOWN_TOPIC
    assert core.kinds() == ["topic_changed", "topic_changed"]


def test_a_version_does_not_come_back_with_the_content() -> None:
    core = an_empty_shard()
    versions = [put(core).version, put(core, owner="a").version, put(core).version]
    core.ask(m.DeleteTopic(NS, "t"))
    versions.append(put_again(core).version)

    assert len(set(versions)) == 4


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
    assert (reply.topics[0].partitions, reply.next_after) == (3, None)
    assert [topic.topic for topic in listed(core, after="a").topics] == ["b"]
    page = listed(core, limit=1)
    assert ([topic.topic for topic in page.topics], page.next_after) == (["a"], "a")
    assert listed(core, limit=2).next_after is None


def test_the_version_of_no_topics_is_the_same_everywhere() -> None:
    assert listed(an_empty_shard()).version == listed(an_empty_shard(), after="a").version != ""


def test_the_version_counts_on_over_a_restart_after_all_topics_are_deleted() -> None:
    core = an_empty_shard()
    put(core)
    core.ask(m.DeleteTopic(NS, "t"))
    deleted = listed(core).version

    core.restart()

    assert listed(core).version == deleted
    put(core, "u")
    assert [(row.topic, row.revision) for row in core.shard.image().topics] == [("t", 2), ("u", 3)]


def test_a_change_after_the_store_went_back_has_another_version_than_the_lost_one() -> None:
    kept, lost = an_empty_shard(), an_empty_shard()
    put(kept, "a")
    put(lost, "b")

    assert listed(kept).version != listed(lost).version


# --- progress belongs to one topic of the name (ADR 107) ------------------------------------------------


def a_group_with_progress() -> Core:
    """A Stable group that has committed 1000 in partition 0 of the registered topic `t`, and 7 in `u`."""
    core = a_stable_group(members=1)
    put(core)
    core.ask(a_commit("m0", 1, offset=1_000))
    core.ask(m.CommitOffsets(*KEY, 1, (m.OffsetToCommit("u", 0, 7),), "m0"))
    return core


def test_a_deletion_deletes_the_topics_progress_alone() -> None:
    core = a_group_with_progress()

    deleted = core.ask(m.DeleteTopic(NS, "t"))

    assert deleted.groups == 1
    assert progress(core) == [("u", 0, 7)]
    line = core.last("offsets_deleted")
    assert (line.partitions, line.reason) == ((("t", 0),), "topic deleted")


def test_a_topic_that_comes_back_has_no_progress() -> None:
    core = a_group_with_progress()
    core.ask(m.DeleteTopic(NS, "t"))
    core.ask(a_commit("m0", 1, offset=1_001))

    put_again(core, partitions=2)

    assert progress(core) == [("u", 0, 7)]
    core.restart()
    assert progress(core) == [("u", 0, 7)]


def test_more_partitions_keep_the_progress() -> None:
    core = a_group_with_progress()

    put(core, partitions=6)

    assert progress(core) == [("t", 0, 1_000), ("u", 0, 7)]


def test_the_first_topic_of_a_name_keeps_the_progress() -> None:
    core = a_stable_group(members=1)
    core.ask(a_commit("m0", 1, offset=5))

    put(core)

    assert progress(core) == [("t", 0, 5)]


def test_a_deleted_topic_is_not_put_before_all_forget_it() -> None:
    core = a_group_with_progress()
    core.ask(m.DeleteTopic(NS, "t"))

    reply = put(core)

    assert (reply.error, reply.forget_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, 3)
    assert core.ask(m.GetTopic(NS, "t")).error is ErrorCode.UNKNOWN_TOPIC
    assert core.ask(m.PutTopic(NS, "t", 3, topic_id=2)).forget_id == 0, "every shard has forgotten it by that id"


def test_a_late_forget_does_not_touch_the_next_topic() -> None:
    core = a_group_with_progress()
    earlier = core.ask(m.DeleteTopic(NS, "t")).forget_id
    put_again(core)
    core.ask(a_commit("m0", 1, offset=3))

    core.ask(m.ForgetTopic(NS, "t", earlier))

    assert progress(core) == [("t", 0, 3), ("u", 0, 7)]


def test_a_repeated_deletion_says_what_is_to_be_forgotten() -> None:
    core = a_group_with_progress()
    first = core.ask(m.DeleteTopic(NS, "t"))

    again = core.ask(m.DeleteTopic(NS, "t"))

    assert (again.error, again.forget_id) == (ErrorCode.UNKNOWN_TOPIC, first.forget_id)


def commit_of(core: Core, topic_id: int | None) -> ErrorCode:
    """The answer to a commit of a member that has fetched the progress of this topic."""
    offsets = (m.OffsetToCommit("t", 0, 9, topic_id=topic_id), m.OffsetToCommit("u", 0, 8))
    first, second = core.ask(m.CommitOffsets(*KEY, 1, offsets, "m0")).partitions
    assert second.error is ErrorCode.NONE
    error: ErrorCode = first.error
    return error


def test_a_commit_for_the_deleted_topic_is_refused() -> None:
    core = a_group_with_progress()
    (before, _) = core.ask(a_fetch()).offsets
    core.ask(m.DeleteTopic(NS, "t"))
    put_again(core)
    (after,) = core.ask(m.FetchOffsets(*KEY, (m.TopicPartitions("t", (0,)),))).offsets

    assert commit_of(core, before.topic_id) is ErrorCode.UNKNOWN_TOPIC
    assert progress(core) == [("u", 0, 8)]
    assert commit_of(core, after.topic_id) is ErrorCode.NONE
    assert commit_of(core, None) is ErrorCode.NONE
    core.restart()
    assert commit_of(core, before.topic_id) is ErrorCode.UNKNOWN_TOPIC


def test_groups_without_progress_forget_the_topic_too() -> None:
    core = a_stable_group(members=1)
    put(core)
    (before,) = core.ask(m.FetchOffsets(*KEY, (m.TopicPartitions("t", (0,)),))).offsets
    assert core.ask(m.DeleteTopic(NS, "t")).groups == 0

    assert commit_of(core, before.topic_id) is ErrorCode.UNKNOWN_TOPIC


def test_a_deleted_topic_takes_its_quarantined_units_with_it() -> None:
    core = a_stable_group(members=1)
    put(core)
    result = Result(core.now_ms, core.shard.limits)
    record(result, core.group, UnitsQuarantined(("t/1", "u/1"), 0, "three holders fell"))
    core.shard._note_dirty(result)
    core._take(result)

    core.ask(m.DeleteTopic(NS, "t"))

    assert core.group.quarantine.names == ("u/1",)
    assert core.last("units_released").reason == "topic deleted"
    assert core.group.state == "PreparingRebalance", "a leader that sees the topic again, unchanged, asks for nothing"


def test_an_empty_group_forgets_the_topic() -> None:
    core = a_group_with_progress()
    core.ask(a_leave("m0"))

    core.ask(m.DeleteTopic(NS, "t"))

    assert progress(core) == [("u", 0, 7)]


def test_a_users_late_transaction_does_not_count() -> None:
    core = a_group_with_progress()
    core.ask(m.DeleteTopic(NS, "t"))
    late = OffsetRow(*KEY, "t", 0, 1_001, None, "", 900, topic_id=0)
    core.checking = False  # The store has the row already, this driver's store has not.

    core._take(core.shard.take_in([SideCommit(0, 1, *KEY, "t", 0, "m0", late)], core.now_ms))

    assert progress(core) == [("u", 0, 7)]
