"""Offsets, groups and topics: committing, reading, deleting, expiring (protocol.md §3, §8.12, §8.13)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rota.core.group.rows import OffsetRow, SideCommit
from rota.core.types.consumer import Subscription, encode_subscription
from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode
from tests.unit.group.driver import (
    KEY,
    LIMITS,
    NAMESPACE,
    Core,
    a_commit,
    a_fetch,
    a_group_in_a_join_phase,
    a_heartbeat,
    a_join,
    a_leave,
    a_stable_group,
    a_sync,
    an_empty_group,
    an_empty_shard,
    everybody_again,
)

ITEM = m.OffsetToCommit("t", 0, 1)
TWO_TOPICS = (ITEM, replace(ITEM, topic="u"))


def a_reader(*topics: str) -> Core:
    """A consumer group of one member in its initial delay."""
    core = an_empty_shard()
    metadata = encode_subscription(Subscription(topics=topics))
    core.send(a_join(new="m0", instance="i", protocols=(("range", metadata),), protocol_type="consumer"))
    return core


def a_consumer_group(*topics: str) -> Core:
    """One member, subscribed to the topics, Stable."""
    core = a_reader(*topics)
    core.let_the_join_phase_end()
    core.ask(a_sync("m0", 1, "i", m0=b""))
    return core


def test_progress_of_a_topic_in_use_cannot_be_deleted() -> None:
    core = a_consumer_group("t")
    core.ask(m.CommitOffsets(*KEY, 1, TWO_TOPICS, "m0", "i"))

    request = m.DeleteOffsets(*KEY, (m.TopicPartitions("t", (0,)), m.TopicPartitions("u", (0, 9))))
    reply = core.ask(request)

    assert [p.error for p in reply.partitions] == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE, ErrorCode.NONE]
    assert [found.topic for found in core.ask(a_fetch()).offsets] == ["t"]


def test_progress_of_members_of_another_type_is_not_deletable() -> None:
    core = a_stable_group(members=1)

    request = m.DeleteOffsets(*KEY, (m.TopicPartitions("t", (0,)),))

    assert core.ask(request).error is ErrorCode.NON_EMPTY_GROUP
    assert an_empty_shard().ask(request).error is ErrorCode.GROUP_ID_NOT_FOUND


def deleted(core: Core) -> ErrorCode:
    (partition,) = core.ask(m.DeleteOffsets(*KEY, (m.TopicPartitions("t", (0,)),))).partitions
    error: ErrorCode = partition.error
    return error


def test_a_consumer_group_of_unknown_topics_may_read_all() -> None:
    assert deleted(a_reader("u")) is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_a_group_ends_with_its_last_expired_offset() -> None:
    core = an_empty_group()
    core.advance(LIMITS.offsets_retention_ms - 1)
    assert core.sweep() == 0
    core.advance(1)

    assert core.sweep() == 2
    assert core.shard.groups == {}
    assert core.ask(m.DescribeGroup(*KEY)).state == "Dead"


def test_progress_of_an_emptied_group_counts_from_its_end() -> None:
    core = a_stable_group(members=1)
    core.ask(a_commit("m0", 1))
    for _ in range(LIMITS.offsets_retention_ms // 5_000):
        core.advance(5_000)
        core.ask(m.Heartbeat(*KEY, "m0", 1))
    core.ask(m.LeaveGroup(*KEY, (m.LeavingMember("m0"),)))

    core.advance(LIMITS.offsets_retention_ms - 1)
    gone_early = core.sweep()
    core.advance(1)

    assert (gone_early, core.sweep()) == (0, 2), "the offset, and the group with it"


def test_a_commit_outlives_the_retention_of_its_empty_group() -> None:
    """A rule of quarantine, or an offset with a retention of its own, keeps an Empty group for longer than that."""
    core = a_stable_group(members=1)
    kept = replace(ITEM, partition=5, retention_time_ms=10 * LIMITS.offsets_retention_ms)
    core.ask(m.CommitOffsets(*KEY, 1, (kept,), "m0"))
    core.ask(a_leave("m0"))
    core.advance(LIMITS.offsets_retention_ms)
    core.ask(a_commit("", -1))

    swept = core.sweep()
    core.advance(LIMITS.offsets_retention_ms - 1)
    late = core.sweep()
    core.advance(1)

    assert (swept, late, core.sweep()) == (0, 0, 1)


def test_progress_of_a_topic_that_is_not_read_expires_alone() -> None:
    core = a_consumer_group("t")
    committed_ms = core.now_ms
    core.ask(m.CommitOffsets(*KEY, 1, TWO_TOPICS, "m0", "i"))
    until_ms = committed_ms + LIMITS.offsets_retention_ms
    while core.now_ms < until_ms - 1:
        core.ask(a_heartbeat("m0", 1, instance="i"))
        core.advance(min(5_000, until_ms - 1 - core.now_ms))
    assert core.sweep() == 0
    core.advance(1)

    assert core.sweep() == 1
    assert (core.last("offsets_deleted").partitions, core.last("offsets_deleted").reason) == ((("u", 0),), "expired")


def test_a_sweep_counts_all_that_has_gone() -> None:
    core = an_empty_shard()
    for group_id, count in (("a", 2), ("b", 3)):
        items = tuple(replace(ITEM, partition=number) for number in range(count))
        core.ask(m.CommitOffsets(NAMESPACE, group_id, -1, items))
    core.advance(LIMITS.offsets_retention_ms)

    assert core.sweep() == 2 + 3 + 2, "progress, and the groups that held it"


def test_a_group_is_not_swept_between_the_two_joins_of_a_member() -> None:
    core = an_empty_shard()
    core.ask(a_join(new="m0"))

    assert core.sweep() == 0
    assert core.is_parked(core.send(a_join("m0")))


def test_an_empty_group_without_offsets_is_kept_for_its_retention() -> None:
    core = a_stable_group(members=1, limits=dataclasses.replace(LIMITS, empty_group_retention_ms=5_000))
    core.ask(a_leave("m0"))

    core.advance(4_999)
    early = core.sweep()
    kept = core.ask(m.DescribeGroup(*KEY))
    core.advance(1)

    assert (early, core.sweep()) == (0, 1)
    assert (kept.state, kept.rebalance_reason) == ("Empty", "m0 left")


def test_a_shard_keeps_only_so_many_empty_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.core.group.shard.MAX_EMPTY_GROUPS", 2)
    core = an_empty_shard(dataclasses.replace(LIMITS, empty_group_retention_ms=5_000))
    for group_id in ("b", "a", "c"):
        core.ask(m.CommitOffsets(NAMESPACE, group_id, -1, (ITEM,)))
        core.ask(m.DeleteOffsets(NAMESPACE, group_id, (m.TopicPartitions(ITEM.topic, (ITEM.partition,)),)))
        core.advance(1)

    assert core.sweep() == 1
    assert [group.group_id for group in core.shard.groups.values()] == ["a", "c"], "the one that was Empty longest goes"


@pytest.mark.parametrize("build", [an_empty_shard, an_empty_group, a_stable_group])
def test_newcomer_commits_only_once_it_is_in_the_generation(build: Callable[[], Core]) -> None:
    core = build()
    core.send(a_join(new="new", instance="i9"))
    former = core.group.generation_id

    early = core.ask(a_commit("new", former, partition=5))
    everybody_again(core)
    core.let_the_join_phase_end()
    awaiting = core.ask(a_commit("new", former + 1, partition=5))
    core.send(replace(a_sync(core.leader_id, former + 1), assignments=((core.leader_id, b"all"),)))
    late = core.ask(a_commit("new", former, partition=5))
    settled = core.ask(a_commit("new", former + 1, partition=5))

    # The same as for a generation that is over: it keeps its id, and joins.
    assert (early.error, late.error) == (ErrorCode.ILLEGAL_GENERATION, ErrorCode.ILLEGAL_GENERATION)
    assert (awaiting.error, settled.error) == (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NONE)
    assert core.kinds().count("offsets_committed") == 1 + (build is an_empty_group)


def test_commits_and_fence_checks_have_the_same_members() -> None:
    core = a_stable_group(members=2, static=1)
    core.send(a_join(new="back", instance="i0", protocols=(("range", b"changed"),)))
    core.send(a_join(new="new", instance="i9"))
    ids = [*core.group.members, "m0", "stranger"]

    commits = {member_id: core.ask(a_commit(member_id, 1)).error is ErrorCode.NONE for member_id in ids}
    fences = {member_id: core.ask(m.VerifyFence(*KEY, 1, member_id)).is_member for member_id in ids}

    assert commits == fences == {"back": True, "m1": True, "new": False, "m0": False, "stranger": False}


def test_nobody_is_named_as_leader_who_never_led() -> None:
    core = a_stable_group(members=2)
    assert core.ask(m.GetLeader(*KEY)).leader_id == "m0"

    core.ask(m.LeaveGroup(*KEY, (m.LeavingMember("m0"),)))

    assert core.ask(m.GetLeader(*KEY)).leader_id == ""
    assert core.ask(m.VerifyFence(*KEY, 1, "m1")).is_leader is False
    core.restart()
    assert core.ask(m.GetLeader(*KEY)).leader_id == ""


def test_a_protocol_is_described_only_while_stable() -> None:
    core = a_stable_group(members=1)
    stable = core.ask(m.DescribeGroup(*KEY))
    core.send(a_join("m0", protocols=(("range", b"new"),)))

    awaiting = core.ask(m.DescribeGroup(*KEY))

    assert (stable.members[0].assignment, stable.protocol_name) == (b"m0", "range")
    assert (awaiting.members[0].assignment, awaiting.protocol_name) == (b"m0", "")


def test_a_join_phase_shows_what_members_were_assigned() -> None:
    """As in Kafka: they may hold it still."""
    core = a_group_in_a_join_phase(members=2)

    first, second = core.ask(m.DescribeGroup(*KEY)).members

    assert (first.assignment, second.assignment) == (b"m0", b"m1")
    assert (first.metadata, second.metadata) == (b"", b"")


def test_a_generation_that_waits_shows_the_last_assignments() -> None:
    core = a_stable_group(members=2)
    everybody_again(core)
    assert core.group.state == "CompletingRebalance"

    assert [each.assignment for each in core.ask(m.DescribeGroup(*KEY)).members] == [b"m0", b"m1"]


def test_an_interrupted_assignment_ends_the_one_before() -> None:
    """As in Kafka."""
    core = a_stable_group(members=2)
    everybody_again(core)
    core.send(a_join(new="late", instance="late"))
    assert core.group.state == "PreparingRebalance"

    assert [each.assignment for each in core.ask(m.DescribeGroup(*KEY)).members] == [b"", b"", b""]


def test_a_new_owner_shows_what_members_were_assigned() -> None:
    core = a_stable_group(members=2)
    core.restart()
    core.send(a_join("m1", protocols=(("range", b"changed"),)))

    assert [each.assignment for each in core.ask(m.DescribeGroup(*KEY)).members] == [b"m0", b"m1"]


# --- commits of users' own transactions ---------------------------------------------------------------


def test_users_commits_are_taken_in_with_all_that_they_say() -> None:
    core = a_stable_group(members=1)
    row = OffsetRow(*KEY, "t", 0, 42, 5, "x", 900, 5_000)
    gone = SideCommit(0, 1, NAMESPACE, "gone", "t", 0, "m0", row._replace(group_id="gone"))
    core.checking = False  # The store has the row already, this driver's store has not.
    core._take(core.shard.take_in([gone, SideCommit(0, 2, *KEY, "t", 0, "m0", row)], core.now_ms))

    line = core.last("offsets_committed")
    assert (line.member_id, line.reason) == ("m0", "in a transaction of the user's")
    assert core.group.offsets[("t", 0)] == row


# --- the retention of a commit -------------------------------------------------------------------


def an_empty_group_with_progress(**retentions_ms: int | None) -> Core:
    """A group that its only member has left, with an offset of each topic; the commit named these retentions."""
    core = a_stable_group(members=1)
    items = tuple(m.OffsetToCommit(topic, 0, 1, retention_time_ms=ms) for topic, ms in retentions_ms.items())
    core.ask(m.CommitOffsets(*KEY, 1, items, "m0"))
    core.ask(a_leave("m0"))
    return core


def topics_with_progress(core: Core) -> list[str]:
    return [found.topic for found in core.ask(a_fetch()).offsets]


def test_an_offset_expires_at_its_commits_retention() -> None:
    core = an_empty_group_with_progress(short=10_000, long=100_000, servers=None)

    gone = []
    for ms in (9_999, 1, LIMITS.offsets_retention_ms - 10_000, 40_000):
        core.advance(ms)
        core.sweep()
        gone.append(topics_with_progress(core))

    assert gone == [["long", "servers", "short"], ["long", "servers"], ["long"], []]


def test_a_commit_without_a_retention_takes_the_former_one_away() -> None:
    core = a_stable_group(members=1)
    core.ask(m.CommitOffsets(*KEY, 1, (replace(ITEM, retention_time_ms=1_000),), "m0"))
    core.ask(m.CommitOffsets(*KEY, 1, (ITEM,), "m0"))
    core.ask(a_leave("m0"))

    core.advance(1_000)

    assert core.sweep() == 0
    assert [found.expires_at_ms for found in core.ask(a_fetch()).offsets] == [None]


def test_an_offset_of_a_topic_in_use_outlives_its_retention() -> None:
    core = a_consumer_group("t")
    both = (replace(ITEM, retention_time_ms=5_000), replace(ITEM, topic="u", retention_time_ms=5_000))
    core.ask(m.CommitOffsets(*KEY, 1, both, core.ids[0] if core.ids else "m0", "i"))

    core.advance(5_000)
    core.sweep()

    assert topics_with_progress(core) == ["t"]


def test_the_end_of_a_retention_survives_the_owner() -> None:
    core = an_empty_group_with_progress(t=10_000)
    before = core.ask(a_fetch()).offsets
    assert [found.expires_at_ms for found in before] == [core.now_ms + 10_000]

    core.restart()

    assert core.ask(a_fetch()).offsets == before
    core.advance(10_000)
    assert core.sweep() == 2, "the offset and its group"
