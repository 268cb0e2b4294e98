"""When a command gets TERM, and when it is killed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.agents.exec.stopping import COMMAND_ENDED, Step, Stopping, StopTimes
from rota.core.membership import MembershipSettings
from rota.protocol.messages import Protocol

TIMES = StopTimes(grace_ms=2_000, margin_ms=1_000)


def running(valid_until_ms: int = 10_000) -> Stopping:
    return Stopping(TIMES, valid_until_ms)


def test_term_and_then_kill_come_before_the_deadline() -> None:
    stopping = running()

    steps = [stopping.due(now_ms) for now_ms in (7_000, 7_001, 8_999, 9_000, 9_001)]

    assert steps == [Step.TERM, Step.NOTHING, Step.NOTHING, Step.KILL, Step.KILL]
    assert stopping.reason == "deadline"


def test_a_renewal_after_term_is_too_late_beyond_the_grace() -> None:
    stopping = running()
    stopping.due(7_000)

    stopping.renewed(60_000)

    assert stopping.due(8_999) is Step.NOTHING
    assert stopping.due(9_000) is Step.KILL


def test_what_is_lost_is_killed_without_a_grace() -> None:
    stopping = running()
    stopping.lose(1_000, "UNKNOWN_MEMBER_ID")

    assert (stopping.due(1_000), stopping.reason) == (Step.KILL, "UNKNOWN_MEMBER_ID")


def test_a_loss_shortens_a_stop_that_is_under_way() -> None:
    stopping = running(valid_until_ms=60_000)
    stopping.stop(1_000, "revoked", grace_ms=20_000)
    stopping.due(1_000)

    stopping.lose(2_000, "UNKNOWN_MEMBER_ID")

    assert stopping.due(2_000) is Step.KILL


def test_the_command_s_end_shortens_the_time_of_its_leftovers() -> None:
    stopping = running(valid_until_ms=60_000)
    stopping.stop(1_000, "it received SIGTERM", grace_ms=20_000)
    stopping.stop(1_500, COMMAND_ENDED)

    assert (stopping.reason, stopping.next_at_ms()) == ("it received SIGTERM", 3_500)


def test_a_grace_that_does_not_fit_into_the_session_is_refused() -> None:
    assert StopTimes.for_session(10_000, 2_500).grace_ms == 2_500
    with pytest.raises(ValueError, match="2500 ms"):
        StopTimes.for_session(10_000, 2_501)


@given(session_ms=st.integers(1_000, 1_800_000), grace=st.floats(0, 1))
def test_a_healthy_member_never_stops_between_two_heartbeats(session_ms: int, grace: float) -> None:
    """The longest between two answers is a parked heartbeat, which parks for a third of the remaining time at most."""
    times = StopTimes.for_session(session_ms, int(session_ms // 4 * grace))
    settings = MembershipSettings("default", "g", "leader", (Protocol("single", b""),), session_ms, session_ms)
    whole_ms = session_ms - settings.margin_ms

    # The first is parked for `poll_ms`; the session that it renews counts from when it was sent.
    left_ms = whole_ms - settings.poll_ms
    parked_ms = min(settings.poll_ms, left_ms // 3)
    least_left_ms = left_ms - parked_ms

    assert times.term_at_ms(least_left_ms) > 0


@given(
    session_ms=st.integers(1_000, 100_000),
    events=st.lists(st.tuples(st.integers(0, 5_000), st.sampled_from(["renew", "stop", "look"])), max_size=30),
)
def test_kill_is_due_before_the_deadline_whatever_happened(session_ms: int, events: list[tuple[int, str]]) -> None:
    times = StopTimes.for_session(session_ms)
    now_ms, valid_until_ms = 0, session_ms
    stopping = Stopping(times, valid_until_ms)
    for passed_ms, event in events:
        now_ms += passed_ms
        if event == "renew" and now_ms < valid_until_ms:
            valid_until_ms = now_ms + session_ms
            stopping.renewed(valid_until_ms)
        elif event == "stop":
            stopping.stop(now_ms, "revoked", grace_ms=2 * session_ms)
        stopping.due(now_ms)

    stopping.due(times.term_at_ms(valid_until_ms))
    assert stopping.due(times.kill_at_ms(valid_until_ms)) is Step.KILL
    assert times.kill_at_ms(valid_until_ms) < times.backstop_at_ms(valid_until_ms) < valid_until_ms
