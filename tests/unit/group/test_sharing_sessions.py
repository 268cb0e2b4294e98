"""Sessions that replicas share: a new owner shortens them, another replica's answer prolongs them."""

from __future__ import annotations

import pytest

from rota.core.group.state import Timer, TimerKind
from tests.unit.group.driver import KEY, SESSION_MS, Core, a_group_in_a_join_phase, a_heartbeat, a_join, a_stable_group

GRACE_MS = 1_000


def name(member_id: str) -> tuple[str, str, str]:
    return (*KEY, member_id)


def timer_of(core: Core, member_id: str = "m0") -> Timer:
    armed_ms = core.group.members[member_id].session_armed_ms
    assert armed_ms is not None
    return Timer(TimerKind.SESSION, *KEY, member_id, armed_ms)


def left_ms(core: Core, member_id: str) -> int:
    deadline_ms = core.deadline_ms(member_id)
    assert deadline_ms is not None
    return deadline_ms - core.now_ms


def a_new_owner(members: int = 2) -> Core:
    """Every member has a full session."""
    core = a_stable_group(members)
    core.restart()
    return core


# --- taking over -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen_ms_ago", "kept_ms"),
    [
        pytest.param(4_000, SESSION_MS - 4_000 + GRACE_MS, id="the rest and the grace"),
        pytest.param(SESSION_MS, GRACE_MS, id="its session was over"),
        pytest.param(SESSION_MS + 5_000, GRACE_MS, id="long over"),
        pytest.param(GRACE_MS // 2, SESSION_MS, id="never more than a full session"),
    ],
)
def test_a_member_keeps_the_rest_of_its_session(seen_ms_ago: int, kept_ms: int) -> None:
    core = a_new_owner()
    result = core.shard.share_sessions({name("m0"): seen_ms_ago}, GRACE_MS, core.now_ms)

    assert (left_ms(core, "m0"), left_ms(core, "m1")) == (kept_ms, SESSION_MS)
    expected = [] if kept_ms == SESSION_MS else [core.now_ms + kept_ms]
    assert [timer.at_ms for timer in result.timers] == expected


@pytest.mark.parametrize(("unknown_ms_ago", "kept_ms"), [(3_000, SESSION_MS - 3_000), (9_500, GRACE_MS)])
def test_a_member_may_have_been_seen_once_more(unknown_ms_ago: int, kept_ms: int) -> None:
    core = a_new_owner()
    core.shard.share_sessions({name("m0"): SESSION_MS}, GRACE_MS, core.now_ms, unknown_ms_ago)

    assert left_ms(core, "m0") == kept_ms


def test_a_member_whose_call_is_parked_keeps_its_session_stopped() -> None:
    core = a_group_in_a_join_phase(members=2)
    core.shard.share_sessions({name("m1"): 9_000, name("m0"): 9_000}, GRACE_MS, core.now_ms)

    assert core.deadline_ms("m1") is None
    assert left_ms(core, "m0") == SESSION_MS - 9_000 + GRACE_MS


# --- publishing --------------------------------------------------------------------------------------------


def test_members_that_were_seen_are_taken_once_with_the_time() -> None:
    core = a_stable_group()
    core.shard.share_sessions({}, 0, core.now_ms)
    assert core.shard.take_seen() == {}
    core.advance(500)
    core.ask(a_heartbeat("m0", 1))
    seen_at_ms = core.now_ms
    core.advance(50)

    assert core.shard.take_seen() == {name("m0"): seen_at_ms}
    assert core.shard.take_seen() == {}


def test_a_parked_member_is_taken_without_a_time() -> None:
    core = a_group_in_a_join_phase(members=3)
    core.shard.share_sessions({}, 0, core.now_ms)
    core.send(a_join("m0"))

    assert core.shard.take_seen() == {name("m0"): None}


def test_all_members_can_be_taken_again() -> None:
    core = a_stable_group()
    core.shard.share_sessions({}, 0, core.now_ms)
    core.advance(300)
    core.shard.mark_all_seen()

    assert core.shard.take_seen().keys() == {name("m0"), name("m1")}


def test_without_shared_sessions_nothing_is_noted() -> None:
    core = a_stable_group()
    core.ask(a_heartbeat("m0", 1))

    assert core.shard.seen is None


# --- before an expiry -----------------------------------------------------------------------------------------


def test_a_session_is_over_at_its_deadline() -> None:
    core = a_stable_group()
    timer = timer_of(core)
    deadline_ms = core.deadline_ms("m0")
    assert deadline_ms is not None

    assert not core.shard.removes_members(timer, deadline_ms - 1)
    assert core.shard.removes_members(timer, deadline_ms)


def test_only_the_timer_that_counts_ends_a_session() -> None:
    core = a_stable_group()
    timer = timer_of(core)
    late_ms = core.now_ms + 10 * SESSION_MS

    assert not core.shard.removes_members(timer._replace(at_ms=timer.at_ms - 1), late_ms)
    assert not core.shard.removes_members(timer._replace(member_id="stranger"), late_ms)
    assert not core.shard.removes_members(timer._replace(group_id="other"), late_ms)
    assert not core.shard.removes_members(timer._replace(kind=TimerKind.JOIN), late_ms)


def test_the_session_of_a_parked_member_is_not_over() -> None:
    core = a_group_in_a_join_phase(members=2)
    armed_ms = core.group.members["m1"].session_armed_ms
    assert armed_ms is not None

    assert not core.shard.removes_members(Timer(TimerKind.SESSION, *KEY, "m1", armed_ms), core.now_ms + 10 * SESSION_MS)


def test_a_member_another_replica_saw_has_a_session_from_then() -> None:
    core = a_stable_group()
    timer, now_ms = timer_of(core), core.now_ms + SESSION_MS
    core.shard.extend_session(timer, 2_500, now_ms)
    result = core.shard.on_timer(timer, now_ms)

    assert core.deadline_ms("m0") == now_ms - 2_500 + SESSION_MS
    assert [t.at_ms for t in result.timers] == [now_ms - 2_500 + SESSION_MS]
    assert result.records == []


def test_a_member_seen_too_early_by_another_replica_expires() -> None:
    core = a_stable_group()
    deadline_ms = core.deadline_ms("m0")
    assert deadline_ms is not None
    core.shard.extend_session(timer_of(core), SESSION_MS + 1, deadline_ms)
    result = core.shard.on_timer(timer_of(core), deadline_ms)

    assert "member_expired" in [entry.record.kind for entry in result.records]


def test_a_heartbeat_meanwhile_counts_for_longer_than_an_answer() -> None:
    core = a_stable_group()
    timer = timer_of(core)
    core.advance(SESSION_MS - 1)
    core.ask(a_heartbeat("m0", core.generation_id))
    core.shard.extend_session(timer, 2_500, core.now_ms + 1)

    assert left_ms(core, "m0") == SESSION_MS


def test_an_answer_about_a_member_that_is_gone_does_nothing() -> None:
    core = a_stable_group()
    timer = timer_of(core)

    for gone in (timer._replace(member_id="stranger"), timer._replace(group_id="other")):
        core.shard.extend_session(gone, 0, core.now_ms)
        assert core.shard.on_timer(gone, core.now_ms).records == []


@pytest.mark.parametrize(
    ("member", "is_member"),
    [(name("m0"), True), (name("gone"), False), ((KEY[0], "another group", "m0"), False)],
)
def test_a_shard_knows_its_members_by_name(member: tuple[str, str, str], is_member: bool) -> None:
    assert a_stable_group(members=1).shard.has_member(member) is is_member
