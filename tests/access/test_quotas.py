"""Quotas: what a namespace may take, and that heartbeats at their own pace are never too much."""

from __future__ import annotations

from rota.access.document import AccessDocument
from rota.access.quotas import BURST_S, Bucket, Meter, Quota, Stored, Taken, quota_of
from rota.api.access.meters import LOOK_EVERY_MS, Meters
from rota.protocol import messages as m
from rota.protocol.limits import Limits


def a_meter(**quota: int) -> Meter:
    return Meter(Quota(**quota), Limits(), 0)


def a_join(group_id: str = "g", instance: str | None = None, size: int = 0) -> m.JoinGroup:
    protocols = (m.Protocol("p", b"x" * size),)
    return m.JoinGroup("n", group_id, "t", protocols, 10_000, 10_000, group_instance_id=instance)


def a_beat(member_id: str = "a") -> m.Heartbeat:
    return m.Heartbeat("n", "g", member_id, 1)


def test_a_bucket_gives_its_burst_then_its_rate() -> None:
    bucket = Bucket(10, 0)

    assert [bucket.take(1, 0) for _ in range(21)] == [True] * 20 + [False]
    assert [bucket.take(1, 100) for _ in range(2)] == [True, False]
    assert [bucket.take(1, 60_000) for _ in range(21)] == [True] * 20 + [False]


def test_what_is_taken_of_a_bucket_comes_back_at_its_rate() -> None:
    bucket = Bucket(10, 0)
    for _ in range(5):
        bucket.take(1, 0)

    assert [bucket.taken(now_ms) for now_ms in (0, 200, 500, 60_000)] == [5, 3, 0, 0]
    bucket.take(50, 60_000)
    assert bucket.taken(60_000) == 50


def test_a_meter_tells_what_its_namespace_takes_by_now() -> None:
    meter = a_meter(requests_per_s=5, bytes_per_s=100)
    meter.parked = 2
    meter.refusal_of(a_join(size=49), 0)

    assert meter.taken(0) == Taken(parked=2, requests=1, bytes=50)
    assert a_meter(max_groups=1).taken(0) == Taken()


def test_one_request_larger_than_the_bucket_goes_through_and_the_next_ones_wait_for_it() -> None:
    bucket = Bucket(10, 0)

    assert bucket.take(50, 0)
    assert not bucket.take(1, 2_900)
    assert bucket.take(1, 3_100)


def test_requests_over_the_rate_are_refused_with_the_rate() -> None:
    meter = a_meter(requests_per_s=5)

    refusals = [meter.refusal_of(m.DescribeGroup("n", "g"), 0) for _ in range(11)]

    assert refusals == [""] * 10 + ["more than 5 requests a second"]


def test_heartbeats_at_their_own_pace_pass_whatever_else_the_namespace_does() -> None:
    meter = a_meter(requests_per_s=5)
    for _ in range(50):
        meter.refusal_of(m.DescribeGroup("n", "g"), 0)

    # The shortest session is one second, so no client heartbeats more often than every 333 ms.
    refusals = [meter.refusal_of(a_beat(f"m{n}"), at_ms) for at_ms in range(0, 10_000, 334) for n in range(100)]

    assert set(refusals) == {""}


def test_a_member_that_heartbeats_without_a_pause_takes_part_in_the_rate() -> None:
    meter = a_meter(requests_per_s=5)

    refusals = [meter.refusal_of(a_beat(), 0) for _ in range(50)]

    assert [bool(refusal) for refusal in refusals] == [False] * 11 + [True] * 39
    assert meter.refusal_of(a_beat("another"), 0) == ""
    assert meter.refusal_of(a_beat(), 333) == ""


def test_a_message_of_several_heartbeats_passes_while_one_of_them_is_in_time() -> None:
    meter = a_meter(requests_per_s=1)
    both = m.HeartbeatMany("n", "g", (m.MemberHeartbeat("a", 1), m.MemberHeartbeat("b", 1)))

    assert [meter.refusal_of(a_beat(), 0) for _ in range(3)] == ["", "", ""]
    assert meter.refusal_of(a_beat(), 0) != ""
    assert meter.refusal_of(both, 0) == ""
    assert meter.refusal_of(both, 0) != ""


def test_heartbeats_take_nothing_of_the_rate_of_others() -> None:
    meter = a_meter(requests_per_s=5)
    for n in range(1_000):
        meter.refusal_of(a_beat(f"m{n}"), 0)

    assert meter.refusal_of(m.DescribeGroup("n", "g"), 0) == ""


def test_newcomers_count_on_top_of_what_the_store_has() -> None:
    meter = a_meter(max_members=3)
    meter.look(Stored(frozenset({"g"}), 2))

    assert [meter.refusal_of(a_join(), 0) for _ in range(2)] == ["", "more than 3 members"]
    meter.look(Stored(frozenset({"g"}), 2))
    assert meter.refusal_of(a_join(), 0) == ""


def test_a_static_member_comes_back_into_a_full_namespace() -> None:
    meter = a_meter(max_members=1)
    meter.look(Stored(frozenset({"g"}), 1, frozenset({("g", "i1")})))

    assert meter.refusal_of(a_join(instance="i1"), 0) == ""
    assert meter.refusal_of(a_join(instance="i2"), 0) == "more than 1 members"


def test_only_new_groups_count_as_groups() -> None:
    meter = a_meter(max_groups=2)
    meter.look(Stored(frozenset({"old"})))

    joins = ("old", "new", "new", "newer", "old")

    assert [meter.refusal_of(a_join(group), 0) for group in joins] == ["", "", "", "more than 2 groups", ""]


def test_a_group_that_a_commit_makes_counts_as_one() -> None:
    """A commit with a negative generation makes the group that is not there, whichever names it gives."""
    meter = a_meter(max_groups=2)
    meter.look(Stored(frozenset({"old"})))

    def commit(group_id: str, member_id: str = "") -> str:
        return meter.refusal_of(m.CommitOffsets("n", group_id, -1, (), member_id=member_id), 0)

    assert [commit("old"), commit("new"), commit("new")] == ["", "", ""]
    assert commit("newer") == meter.refusal_of(a_join("newer"), 0) == "more than 2 groups"
    assert commit("newer", member_id="a") == "more than 2 groups"


def test_parked_calls_are_bounded_but_heartbeats_that_wait_are_not() -> None:
    meter = a_meter(max_parked=1)
    meter.parked = 1

    assert meter.refusal_of(a_join(), 0) == "more than 1 parked calls"
    assert meter.refusal_of(m.Heartbeat("n", "g", "a", 1, wait_ms=3_000), 0) == ""
    assert meter.refusal_of(m.GetLeader("n", "g"), 0) == ""
    assert meter.refusal_of(m.GetLeader("n", "g", wait_ms=1_000), 0) == "more than 1 parked calls"
    assert meter.refusal_of_watch(0) == "more than 1 parked calls"


def test_to_begin_a_watch_is_a_request() -> None:
    meter = a_meter(requests_per_s=1)

    assert [meter.refusal_of_watch(0) for _ in range(BURST_S + 1)] == ["", "", "more than 1 requests a second"]


def test_bytes_are_those_that_are_kept_or_handed_on() -> None:
    meter = a_meter(bytes_per_s=100)

    assert meter.refusal_of(a_join(size=5_000), 0) == ""
    assert meter.refusal_of(a_join(size=1), 1_000) == "more than 100 bytes a second"


def test_a_namespace_without_a_quota_of_its_own_has_that_of_the_star() -> None:
    own, general = Quota(max_groups=1), Quota(max_groups=9)

    assert quota_of({"a": own, "*": general}, "a") is own
    assert quota_of({"a": own, "*": general}, "b") is general
    assert quota_of({"a": own}, "b") is None


class Changing:
    """A policy whose document is another one when it is set."""

    def __init__(self) -> None:
        self.document = AccessDocument()

    def allow(self, requests_per_s: int) -> None:
        """As a file that was written again says it, be it the same or not."""
        self.document = AccessDocument(quotas={"n": Quota(requests_per_s=requests_per_s)})


def test_a_changed_file_gives_nothing_back_where_the_quota_is_as_before() -> None:
    now_s, policy = [0.0], Changing()
    meters = Meters(policy, Limits(), clock=lambda: now_s[0])

    def ask_later(requests_per_s: int) -> str:
        policy.allow(requests_per_s)
        now_s[0] += LOOK_EVERY_MS / 1_000
        return meters.refusal_of(a_join())

    policy.allow(1)
    used_up = [meters.refusal_of(a_join()) for _ in range(3)]

    assert used_up == ["", "", "more than 1 requests a second"]
    assert [ask_later(1), ask_later(1)] == ["", "more than 1 requests a second"]
    assert ask_later(2) == ""
