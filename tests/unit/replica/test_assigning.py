"""Assigning by the server without a shell: when topics are listed, for which groups, and the effect of an outcome."""

from __future__ import annotations

import json

import pytest

from rota.core.replica.assigning import (
    LINGER_MS,
    PAUSE_MS,
    REFRESH_MS,
    RETRY_MS,
    TOPICS_OF_A_PAGE,
    AskTopics,
    Compute,
)
from rota.core.types import TopicFacts, leader, registry
from rota.protocol.messages import ListedTopic, ListTopicsReply
from tests.unit.replica.assigning_stage import Replica


@pytest.fixture
def replica() -> Replica:
    return Replica()


# --- a new generation --------------------------------------------------------------------------------


def test_a_generation_is_assigned_once_its_topics_are_listed(replica: Replica) -> None:
    replica.join()
    listing = replica.listing()
    assert listing is not None
    assert (listing.request.namespace, listing.request.limit) == ("default", TOPICS_OF_A_PAGE)

    replica.list(("t", 2), ("u", 3))

    (job,) = replica.jobs()
    assert job.topics == {"t": TopicFacts(2)}
    replica.compute()
    assert replica.shares() == [[0, 1]]


def test_a_list_has_as_many_pages_as_it_needs(replica: Replica) -> None:
    replica.join()
    replica.list(("a", 1), more=True)
    listing = replica.listing()
    assert listing is not None
    assert listing.request.after == "a"

    replica.list(("t", 2))
    replica.compute()

    assert replica.shares() == [[0, 1]]


def test_groups_that_wait_at_one_time_share_a_listing(replica: Replica) -> None:
    replica.join("g")
    replica.join("h")
    replica.join("i")
    replica.assign(("t", 1))

    replica.assign(("t", 1))

    assert [replica.shares(group) for group in "ghi"] == [[[0]], [[0]], [[0]]]
    assert replica.todo == []


def test_a_group_that_comes_during_a_listing_is_in_the_next(replica: Replica) -> None:
    replica.join()
    replica.join("h")

    replica.list()
    assert [do.job.group_id for do in replica.jobs()] == ["g"]

    replica.list(("t", 1))
    replica.compute()
    assert replica.shares("h") == [[0]]


def test_a_generation_that_begins_during_a_listing_waits(replica: Replica) -> None:
    """A topic that was put before a member joined must be in the list by which the member is assigned."""
    member_id = replica.join(topic="u")
    replica.join(topic="t", member_id=member_id, instance="i1")

    replica.list(("u", 1))
    assert replica.jobs() == []

    replica.assign(("t", 1), ("u", 1))
    assert replica.shares() == [[0]]


def test_a_type_without_topics_is_assigned_without_a_listing(replica: Replica) -> None:
    """The core assigns a generation of such a type, but one may be loaded that still waits for that."""
    replica.join()
    group = replica.owned.shard.groups["default", "g"]
    group.protocol_type, group.protocol_name = leader.PROTOCOL_TYPE, sorted(leader.PROTOCOL_NAMES)[0]
    replica.refuse_listing()
    replica.later(RETRY_MS)

    (job,) = replica.jobs()
    assert job.topics == {}
    assert replica.listing() is None


# --- topics that are unknown -------------------------------------------------------------------------


def test_topics_that_are_unknown_are_listed_again(replica: Replica) -> None:
    replica.join()
    replica.refuse_listing()
    assert replica.todo == []
    assert replica.assigning.wake_ms(replica.now_ms) == replica.now_ms + RETRY_MS
    replica.later(RETRY_MS)

    replica.assign(("t", 1))

    assert replica.shares() == [[0]]


def test_a_listing_that_fails_on_its_second_page_begins_anew(replica: Replica) -> None:
    replica.join()
    replica.list(("a", 1), more=True)
    replica.refuse_listing()
    replica.later(RETRY_MS)

    listing = replica.listing()
    assert listing is not None
    assert listing.request.after == ""


def test_topics_are_handed_on_with_their_attributes(replica: Replica) -> None:
    replica.join()
    topic = ListedTopic("t", 2, {"owner": "billing"})
    replica.answer(ListTopicsReply(topics=(topic,)))

    (job,) = replica.jobs()
    assert job.topics == {"t": TopicFacts(2, {"owner": "billing"})}


# --- changes of topics -------------------------------------------------------------------------------


def test_a_change_lingers_so_that_others_may_follow(replica: Replica) -> None:
    replica.join()
    replica.assign(("t", 1))
    replica.grow()
    replica.later(LINGER_MS - 1)
    replica.grow()
    assert replica.listing() is None
    assert replica.assigning.wake_ms(replica.now_ms) == replica.now_ms + 1
    replica.later(1)

    replica.assign(("t", 2))

    assert replica.shares() == [[0, 1]]
    assert replica.todo == []


def test_two_changes_are_a_pause_apart(replica: Replica) -> None:
    replica.join()
    replica.assign(("t", 1))
    replica.grow()
    replica.later(LINGER_MS)
    replica.assign(("t", 2))
    replica.grow()
    replica.later(LINGER_MS)
    assert replica.listing() is None

    replica.later(PAUSE_MS - LINGER_MS)

    assert replica.listing() is not None


def test_a_new_generation_does_not_wait_for_the_pause(replica: Replica) -> None:
    replica.join()
    replica.assign(("t", 1))
    replica.grow()
    replica.later(LINGER_MS)
    replica.assign(("t", 2))

    replica.join("h")

    assert replica.listing() is not None


def test_changes_collect_for_as_long_as_the_group_says(replica: Replica) -> None:
    """Twelve topics a quarter of a second apart make one generation, not twelve."""
    replica.join(topic="t*", debounce_ms=5_000)
    replica.assign(("t", 1))
    began_ms, generation_id = replica.now_ms, replica.generation_id()
    topics = [("t", 1)]
    for number in range(12):
        topics.append((f"t{number}", 1))
        replica.grow()
        replica.later(250)
        while replica.listing() is not None:
            replica.assign(*topics)
    assert replica.generation_id() == generation_id

    while replica.generation_id() == generation_id:
        replica.later(50)
        while replica.listing() is not None:
            replica.assign(*topics)

    assert 5_000 <= replica.now_ms - began_ms <= 5_000 + LINGER_MS + PAUSE_MS
    assert replica.generation_id() == generation_id + 1
    assert replica.reason.endswith("t0 0 → 1, t1 0 → 1, t10 0 → 1, t11 0 → 1, t2 0 → 1, 7 more")
    assert replica.todo == []


def test_a_change_undone_while_changes_collect_is_no_change(replica: Replica) -> None:
    replica.join(debounce_ms=5_000)
    replica.assign(("t", 1))
    for partitions in (2, 1):
        replica.grow()
        replica.later(PAUSE_MS)
        replica.assign(("t", partitions))

    replica.later(5_000)

    assert replica.todo == []
    assert replica.generation_id() == 1


def test_a_new_generation_has_the_changes_that_collect(replica: Replica) -> None:
    replica.join(debounce_ms=60_000)
    replica.assign(("t", 1))
    replica.grow()
    replica.later(LINGER_MS)
    replica.assign(("t", 2))

    replica.join(debounce_ms=60_000)
    replica.rejoin_all()
    replica.assign(("t", 2))

    assert sorted(replica.shares()) == [[0], [1]]
    replica.later(60_000)
    assert replica.jobs() == []


def test_the_longest_time_that_a_member_names_counts(replica: Replica) -> None:
    for debounce_ms in (0, 5_000, 1_000):
        replica.join(debounce_ms=debounce_ms)
        replica.rejoin_all()
        replica.assign(("t", 3))
    replica.grow()
    replica.later(LINGER_MS)
    replica.assign(("t", 6))

    replica.later(4_999)
    assert (replica.todo, replica.shares()) == ([], [[0], [1], [2]])
    replica.later(1)
    replica.assign(("t", 6))

    assert replica.group().state == "PreparingRebalance", "members of range lose partitions"


@pytest.mark.parametrize("debounce_ms", [-1, 3_600_001, 1.5, "5", True])
def test_a_time_to_collect_that_is_none_is_rejected(debounce_ms: object) -> None:
    metadata = json.dumps({"topics": ["t"], "topics_debounce_ms": debounce_ms}).encode()

    why = registry.why_not_assigned("consumer", "server:range", metadata)

    assert why == "metadata of 'server:range': \"topics_debounce_ms\" must be a number from 0 to 3600000"


def test_a_change_during_a_listing_is_in_the_next(replica: Replica) -> None:
    replica.join()
    replica.grow()
    replica.later(LINGER_MS)
    replica.assign(("t", 1))

    replica.assign(("t", 2))

    assert replica.shares() == [[0, 1]]


def test_a_change_while_a_job_runs_is_assigned_after_it(replica: Replica) -> None:
    replica.join()
    replica.list(("t", 1))
    replica.grow()
    replica.later(LINGER_MS)
    assert replica.listing() is None, "one job of a group at a time"

    replica.compute()
    replica.assign(("t", 2))

    assert replica.shares() == [[0, 1]]
    assert replica.todo == []


def test_a_group_whose_topics_are_the_same_is_left_alone(replica: Replica) -> None:
    replica.join()
    replica.assign(("t", 1))
    replica.grow()
    replica.later(LINGER_MS)

    replica.list(("t", 1), ("u", 1))

    assert replica.jobs() == []


def test_a_change_of_which_the_notification_was_lost_is_found(replica: Replica) -> None:
    replica.join()
    replica.assign(("t", 1))
    assert replica.assigning.wake_ms(replica.now_ms) == replica.now_ms + REFRESH_MS
    replica.later(REFRESH_MS)

    replica.assign(("t", 2))

    assert replica.shares() == [[0, 1]]


def test_a_busy_namespace_does_not_put_off_refreshes_of_others(replica: Replica) -> None:
    """Found here: a refresh took place only where no topic had changed for `REFRESH_MS`, of any namespace."""
    replica.join()
    replica.join("h", namespace="busy")
    replica.todo = [do for do in replica.todo if isinstance(do, AskTopics) and do.request.namespace == "default"]
    replica.assign(("t", 1))
    for _ in range(REFRESH_MS // PAUSE_MS):
        replica.assigning.topics_changed("busy", replica.now_ms)
        replica.later(PAUSE_MS)

    assert replica.listing() is not None


# --- groups and owners that change meanwhile ---------------------------------------------------------


def test_a_job_overtaken_by_a_generation_is_computed_again(replica: Replica) -> None:
    member_id = replica.join(instance="first")
    replica.list(("t", 2))
    replica.join()
    replica.join(member_id=member_id, instance="first")
    assert replica.owned.shard.groups["default", "g"].generation_id == 2
    assert len(replica.todo) == 1, "one job of a group at a time"

    replica.compute()
    replica.assign(("t", 2))

    assert replica.shares() == [[0], [1]]
    assert replica.todo == []


def test_a_job_overtaken_by_a_static_return_is_computed_again(replica: Replica) -> None:
    """Found here: it was computed again only with the next change of topics, or refresh."""
    replica.join(instance="static")
    replica.assign(("t", 1))
    replica.grow()
    replica.later(LINGER_MS)
    replica.list(("t", 2))
    replica.join(instance="static")
    group = replica.owned.shard.groups["default", "g"]
    assert group.generation_id == 1, "the generation stays: nothing but the job says that it is out of date"

    replica.compute()
    replica.assign(("t", 2))

    assert replica.shares() == [[0, 1]]


def test_a_group_that_has_ended_is_forgotten(replica: Replica) -> None:
    member_id = replica.join()
    replica.assign(("t", 1))
    replica.leave(member_id)
    replica.later(REFRESH_MS)

    assert replica.todo == []
    assert replica.assigning.wake_ms(replica.now_ms) is None


def test_a_group_that_has_moved_is_forgotten(replica: Replica) -> None:
    replica.join()
    replica.assign(("t", 1))
    replica.owned.drop("moves")
    replica.later(REFRESH_MS)

    assert replica.todo == []
    assert replica.assigning.wake_ms(replica.now_ms) is None


def test_a_job_of_the_last_owner_ends_no_job_of_the_next(replica: Replica) -> None:
    """The shard has moved away and come back."""
    replica.join()
    replica.list(("t", 1))
    (job,) = replica.jobs()
    replica.todo.remove(job)
    replica.owned.drop("moves")
    replica.load()
    replica.join()
    replica.list(("t", 1))
    under_way = list(replica.todo)

    replica.hand_in(job)

    assert [type(step) for step in under_way] == [Compute]
    assert replica.todo == under_way


@pytest.mark.parametrize("end", ["drop", "close", "lease"])
def test_a_group_that_moves_while_a_job_runs_is_forgotten(replica: Replica, end: str) -> None:
    replica.join()
    replica.list(("t", 1))
    match end:
        case "drop":
            replica.owned.drop("moves")
        case "close":
            replica.owned.close("moves", replica.now())
        case _:
            replica.owned.lease_until_ms = replica.now_ms

    replica.compute()

    assert replica.todo == []
    assert replica.assigning.wake_ms(replica.now_ms) is None


def test_a_shard_that_is_loaded_again_ignores_an_old_job(replica: Replica) -> None:
    replica.join()
    replica.list(("t", 1))
    replica.owned.drop("a write has an unknown outcome")
    replica.load()
    replica.join()
    late = replica.jobs()[0]
    replica.assign(("t", 2))

    assert late.owned is not replica.owned
    assert replica.shares() == [[0, 1]]
