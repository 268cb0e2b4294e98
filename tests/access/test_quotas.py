"""Quotas: what a namespace may take, and that heartbeats at their own pace are never too much."""

from __future__ import annotations

import pytest

from rota.core.access.document import AccessDocument, InvalidAccess, read_document
from rota.core.access.quotas import BURST_S, NAMESPACE, Held, Meter, Quota, Stored, Turns, payer_of, quota_of
from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.server.access.meters import PARKED, STREAM, WATCH, Meters


def a_meter(**quota: int) -> Meter:
    return Meter(Quota(**quota), 0, NAMESPACE, "n")


def a_join(group_id: str = "g", instance: str | None = None, size: int = 0) -> m.JoinGroup:
    protocols = (m.Protocol("p", b"x" * size),)
    return m.JoinGroup("n", group_id, "t", protocols, 10_000, 10_000, group_instance_id=instance)


def a_beat(member_id: str = "a", *_: str) -> m.Heartbeat:
    return m.Heartbeat("n", "g", member_id, 1)


def test_a_bucket_gives_its_burst_then_its_rate() -> None:
    turns = Turns(10, 0)

    assert [turns.take("c", 1, 0) for _ in range(21)] == [True] * 20 + [False]
    assert [turns.take("c", 1, 100) for _ in range(2)] == [True, False]
    assert [turns.take("c", 1, 60_000) for _ in range(21)] == [True] * 20 + [False]


def test_one_large_request_passes_and_the_next_ones_wait() -> None:
    turns = Turns(10, 0)

    assert turns.take("c", 50, 0)
    assert not turns.take("c", 1, 1_900)
    assert turns.take("c", 1, 3_100)


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> float:
        return self.now_ms / 1000


class Beating:
    """A namespace with a quota, and the coordinator's answers to heartbeats there."""

    def __init__(self, requests_per_s: int = 5, *, road: str = "from memory") -> None:
        self.clock, self._road = Clock(), road
        policy = Changing()
        policy.allow(requests_per_s)
        self.meters = Meters(policy, Limits(), self.clock)

    def describe(self, caller: str = "c") -> str:
        return self.meters.refusal_of(caller, m.DescribeGroup("n", "g"))

    def beat(self, *member_ids: str, error: ErrorCode = ErrorCode.NONE, caller: str = "c") -> str:
        """Why heartbeats of these members are rejected, where the coordinator answers them with `error`."""
        request: m.Heartbeat | m.HeartbeatMany = a_beat(*member_ids)
        reply: m.Reply = m.HeartbeatReply(error)
        if len(member_ids) > 1:
            request = m.HeartbeatMany("n", "g", tuple(m.MemberHeartbeat(each, 1) for each in member_ids))
            reply = m.HeartbeatManyReply(
                errors=tuple(m.HeartbeatError(e, error) for e in member_ids if error is not NONE)
            )
        if self._road != "by a call":
            return self.meters.refusal_of_answered(caller, request, reply)
        refusal = self.meters.refusal_of(caller, request)
        if not refusal:
            self.meters.settle(caller, request, reply)
        return refusal


NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID
ROADS = pytest.mark.parametrize("road", ["from memory", "by a call"])
"""Heartbeats are answered at once, or by a call."""


@ROADS
def test_heartbeats_in_time_pass_whatever_else_is_asked(road: str) -> None:
    beating = Beating(road=road)
    refused = [beating.describe() for _ in range(50)]

    # The shortest session is one second, so no client heartbeats more often than every 333 ms.
    refusals = []
    for at_ms in range(0, 200_000, 334):
        beating.clock.now_ms = at_ms
        refusals += [beating.beat(f"m{n}") for n in range(10)]

    assert refused.count("") == 10
    assert set(refusals) == {""}


@ROADS
@pytest.mark.parametrize("size", [1, 3])
def test_heartbeats_with_invented_ids_take_part_in_the_rate(road: str, size: int) -> None:
    beating = Beating(road=road)
    beating.beat("known")

    invented = [beating.beat(*(f"{n}-{i}" for i in range(size)), error=UNKNOWN) for n in range(60)]

    assert invented.count("") == -(-10 // size)
    assert (beating.describe() != "") is (size == 1)
    beating.clock.now_ms = 334
    assert beating.beat("known") == ""
    assert beating.beat("new", caller="another") == ""


@ROADS
def test_a_member_that_heartbeats_in_a_loop_shares_the_rate(road: str) -> None:
    beating = Beating(road=road)
    beating.beat("a")
    beating.clock.now_ms = 400

    refusals = [beating.beat("a") for _ in range(50)]

    assert [bool(refusal) for refusal in refusals] == [False] * 11 + [True] * 39
    assert beating.beat("another") == ""
    beating.clock.now_ms = 733
    assert beating.beat("a") == ""


@ROADS
def test_the_id_of_anothers_member_does_not_change_its_pace(road: str) -> None:
    beating = Beating(road=road)
    beating.beat("a", caller="owner")
    beating.clock.now_ms = 400
    for _ in range(50):
        beating.describe("owner")
    posing = [beating.beat("a", error=ErrorCode.GROUP_AUTHORIZATION_FAILED, caller="thief") for _ in range(60)]

    assert posing.count("") <= 10
    assert beating.beat("a", caller="owner") == ""


def test_members_that_expire_at_once_return_within_seconds() -> None:
    """Their process learns it by one message, and joins again at another replica."""
    beating = Beating(road="by a call")
    beating.beat(*(f"old{n}" for n in range(1_000)), error=UNKNOWN)
    at_once = beating.beat("new")
    beating.clock.now_ms = 2 * BURST_S * 1_000

    assert at_once != ""
    assert beating.beat("new") == ""


# --- fair turns -----------------------------------------------------------------------------------


def test_a_noisy_caller_leaves_a_calm_one_its_share_of_the_rate() -> None:
    """100 requests a second beside 4, of 10 a second together, for a minute."""
    turns, passed = Turns(10, 0), {"noisy": 0, "calm": 0}
    for at_ms in range(0, 60_000, 10):
        passed["noisy"] += turns.take("noisy", 1, at_ms)
        if at_ms % 250 == 0 and at_ms >= 5_000:
            passed["calm"] += turns.take("calm", 1, at_ms)

    assert passed["calm"] == 220
    assert sum(passed.values()) <= 10 * (60 + BURST_S) + 2 * BURST_S * 10 / 2


def test_a_noisy_caller_leaves_room_for_parked_calls_of_others() -> None:
    meter, parked = a_meter(max_parked=20), {"noisy": 0, "calm": 0}

    def park(caller: str) -> str:
        refusal = meter.refusal_of(caller, 0, opening=PARKED)
        if not refusal:
            meter.open["max_parked"].take(caller)
            parked[caller] += 1
        return refusal

    noise = [park("noisy") for _ in range(50)]

    assert noise[-1] == "max_parked"
    assert [park("calm"), park("calm"), park("calm")] == ["", "", "max_parked"]
    assert parked == {"noisy": 18, "calm": 2}


def test_callers_that_all_ask_too_much_get_equal_shares() -> None:
    turns, passed = Turns(30, 0), dict.fromkeys("abc", 0)
    for at_ms in range(0, 60_000, 10):
        for caller in passed:
            passed[caller] += turns.take(caller, 1, at_ms)

    assert max(passed.values()) - min(passed.values()) <= 30 * BURST_S
    assert sum(passed.values()) <= 30 * (60 + 3 * BURST_S)


# --- stored bytes ----------------------------------------------------------------------------------


def test_a_static_member_comes_back_into_a_full_namespace() -> None:
    meter = a_meter(max_members=1)
    meter.look("n", Stored({"g"}, 1, frozenset({("g", "i1")})))

    assert meter.refusal_of("c", 0, a_join(instance="i1")) == ""
    assert meter.refusal_of("c", 0, a_join(instance="i2")) == "max_members"


def test_a_group_that_a_commit_makes_counts_as_one() -> None:
    """A commit with a negative generation makes the group that is not there, whichever names it gives."""
    meter = a_meter(max_groups=2)
    meter.look("n", Stored({"old"}))

    def commit(group_id: str, member_id: str = "") -> str:
        return meter.refusal_of("c", 0, m.CommitOffsets("n", group_id, -1, (), member_id=member_id))

    assert [commit("old"), commit("new"), commit("new")] == ["", "", ""]
    assert commit("newer") == meter.refusal_of("c", 0, a_join("newer")) == "max_groups"
    assert commit("newer", member_id="a") == "max_groups"


def test_parked_calls_are_bounded() -> None:
    meter = a_meter(max_parked=1)
    meter.open["max_parked"].take("c")

    assert meter.refusal_of("c", 0, a_join()) == "max_parked"
    assert meter.refusal_of("c", 0, m.GetLeader("n", "g")) == ""
    assert meter.refusal_of("c", 0, m.GetLeader("n", "g", wait_ms=1_000)) == "max_parked"
    assert meter.refusal_of("c", 0, opening=WATCH) == "max_parked"


def test_a_namespace_without_a_quota_has_that_of_the_star() -> None:
    own, general = Quota(max_groups=1), Quota(max_groups=9)

    assert quota_of({"a": own, "*": general}, "a") is own
    assert quota_of({"a": own, "*": general}, "b") is general
    assert quota_of({"a": own}, "b") is None


class Changing:
    """A policy with a document that can be replaced."""

    def __init__(self) -> None:
        self.document = AccessDocument()

    def allow(self, requests_per_s: int) -> None:
        """As a file that was written again says it, be it the same or not."""
        self.document = AccessDocument(quotas={"n": Quota(requests_per_s=requests_per_s)})


def test_a_changed_file_refills_no_quota_that_stays_the_same() -> None:
    now_s, policy = [0.0], Changing()
    meters = Meters(policy, Limits(), clock=lambda: now_s[0])

    def ask_later(requests_per_s: int) -> str:
        policy.allow(requests_per_s)
        now_s[0] += 0.25
        return meters.refusal_of("c", a_join())

    policy.allow(1)
    used_up = [meters.refusal_of("c", a_join()) for _ in range(3)]

    assert used_up == ["", "", "the quota of namespace n is exhausted: requests_per_s = 1"]
    assert [ask_later(1), ask_later(1)] == ["", "the quota of namespace n is exhausted: requests_per_s = 1"]
    assert ask_later(2) == ""


# --- quotas of callers -------------------------------------------------------------------------------


class Given:
    """A policy with these quotas of callers."""

    def __init__(self, **quotas: Quota) -> None:
        self.document = AccessDocument(caller_quotas={name.replace("_", ":"): quota for name, quota in quotas.items()})


def meters_for(**quota: int) -> Meters:
    return Meters(Given(token_noisy=Quota(**quota)), Limits(), Clock())


def test_the_log_names_the_caller_that_a_quota_refuses(caplog: pytest.LogCaptureFixture) -> None:
    meters = meters_for(requests_per_s=5)

    for n in range(11):
        meters.refusal_of("token:noisy", m.DescribeGroup(f"n{n}", "g"))

    assert [(line.message, vars(line)["caller"], vars(line)["quota"]) for line in caplog.records] == [
        ("over quota", "token:noisy", "requests_per_s")
    ]


def test_a_callers_quota_holds_in_all_namespaces() -> None:
    meters, counted = meters_for(requests_per_s=5), list[tuple[str, str]]()
    meters.refused = lambda scope, quota: counted.append((scope, quota))

    refusals = [meters.refusal_of("token:noisy", m.DescribeGroup(f"n{n}", "g")) for n in range(11)]

    assert refusals == [""] * 10 + ["the quota of caller token:noisy is exhausted: requests_per_s = 5"]
    assert meters.refusal_of("token:calm", m.DescribeGroup("n", "g")) == ""
    assert counted == [("caller", "requests_per_s")]


@pytest.mark.parametrize(("quota", "kind"), [("max_parked", WATCH), ("max_watches", WATCH), ("max_streams", STREAM)])
def test_what_a_caller_has_open_is_bounded(quota: str, kind: tuple[str, ...]) -> None:
    meters = meters_for(**{quota: 1})

    with meters.holding("token:noisy", kind, "n"):
        refusal = meters.refusal_of_call("token:noisy", "another", kind)

    assert refusal == f"the quota of caller token:noisy is exhausted: {quota} = 1"
    assert meters.refusal_of_call("token:noisy", "n", kind) == ""


def test_a_callers_makings_count_until_the_store_drops_them() -> None:
    meters = meters_for(max_groups=2, max_topics=1)

    def make(request: m.Request) -> str:
        return meters.refusal_of("token:noisy", request)

    made = [make(a_join("a")), make(m.CommitOffsets("n", "b", -1, ())), make(a_join("c"))]
    meters.look("n", Stored({"a", "b"}))  # both are empty by now
    full = make(a_join("c"))
    topics = [make(m.PutTopic("n", "t", 1)), make(m.PutTopic("n", "t", 2)), make(m.PutTopic("n", "u", 1))]
    for _ in range(2):
        meters.look("n", Stored({"b"}))

    assert made[:2] == ["", ""]
    assert made[2] == full == "the quota of caller token:noisy is exhausted: max_groups = 2"
    assert topics == ["", "", "the quota of caller token:noisy is exhausted: max_topics = 1"]
    assert make(a_join("c")) == ""
    assert meters.to_look_at() == {"n": False}
    for _ in range(2):
        meters.look("n", Stored())
    assert meters.to_look_at() == {}


def test_what_members_of_a_caller_have_stored_counts_for_it() -> None:
    meters = meters_for(max_stored_bytes=1_000, max_groups=2)
    meters.refusal_of("token:noisy", m.DescribeGroup("n", "g"))
    meters.look("n", Stored({"x", "y"}, by_caller={"token:noisy": Held(frozenset({"x"}), 1, 400)}))

    refusals = [meters.refusal_of("token:noisy", a_join("y", size=599)) for _ in range(2)]
    syncs = [
        meters.refusal_of("token:noisy", m.SyncGroup("n", "x", "m", 1, assignments=(("m", b"x" * size),)))
        for size in (1_024, 1_025)
    ]

    assert refusals == ["", "the quota of caller token:noisy is exhausted: max_stored_bytes = 1000"]
    assert [bool(refusal) for refusal in syncs] == [False, True]


def test_callers_without_credentials_are_their_addresses() -> None:
    assert payer_of("token:a", "10.0.0.7") == "token:a"
    assert payer_of("anonymous", "10.0.0.7") == payer_of("anonymous", "::ffff:10.0.0.7") == "anonymous 10.0.0.7"
    assert payer_of("anonymous", "2001:db8::1") == payer_of("anonymous", "2001:db8::2") == "anonymous 2001:db8::/64"
    assert payer_of("anonymous", "") == "anonymous"


def test_a_caller_has_the_quota_of_the_longest_pattern_for_it() -> None:
    quotas = {"*": Quota(max_groups=1), "sa:a/*": Quota(max_groups=2), "sa:a/b": Quota(max_groups=3)}

    found = [quota_of(quotas, name) for name in ("token:x", "anonymous 10.0.0.7", "sa:a/c", "sa:a/b")]

    assert [quota and quota.max_groups for quota in found] == [1, 1, 2, 3]


def test_quotas_of_callers_stand_in_the_access_file() -> None:
    document = read_document({"caller_quotas": [{"subject": "anonymous", "max_streams": 5}]})

    quota = quota_of(document.caller_quotas, payer_of("anonymous", "10.0.0.7"))
    assert quota is not None
    assert quota.max_streams == 5
    assert quota_of(document.caller_quotas, "token:a") is None
    with pytest.raises(InvalidAccess, match="max_streams is for callers"):
        read_document({"quotas": [{"namespace": "*", "max_streams": 5}]})
