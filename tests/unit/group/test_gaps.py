"""Gaps between two signs of life: their classes, their quantiles, and the line that the journal gets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.core.group.records import CLASSES, class_end_ms, gap_class, quantile_ms
from rota.protocol.messages import HeartbeatMany, MemberHeartbeat
from tests.unit.group.driver import KEY, LIMITS, SESSION_MS, Core, a_heartbeat, a_stable_group

INTERVAL_MS = 5_000


@pytest.mark.parametrize(("number", "end_ms"), [(0, 0), (3, 3), (4, 4), (5, 5), (7, 7), (8, 9), (11, 15), (12, 19)])
def test_a_class_is_a_quarter_of_a_doubling(number: int, end_ms: int) -> None:
    assert class_end_ms(number) == end_ms
    assert (gap_class(end_ms), gap_class(end_ms + 1)) == (number, number + 1)


def test_the_last_class_has_no_end() -> None:
    assert gap_class(2**60) == CLASSES - 1
    assert gap_class(class_end_ms(CLASSES - 2)) == CLASSES - 2


def test_a_gap_of_less_than_nothing_counts_as_none() -> None:
    assert gap_class(-5) == 0


def test_gaps_are_counted_by_class_and_the_longest_is_kept() -> None:
    core = a_stable_group(members=1)
    forget_gaps(core, "m0")

    for gap_ms in (8, 9, 3, 1, 0, 8):
        core.advance(gap_ms)
        core.ask(a_heartbeat("m0", 1))

    gaps = core.group.members["m0"].gaps
    assert gaps is not None
    assert (gaps.classes, gaps.longest_ms) == ({8: 3, 3: 1, 1: 1, 0: 1}, 9)


def test_members_of_one_message_have_gaps_of_their_own() -> None:
    core = a_stable_group(members=3)
    for member_id, before_ms in (("m0", 30), ("m1", 10), ("m2", 1)):
        core.advance(before_ms)
        core.ask(a_heartbeat(member_id, 1))
        forget_gaps(core, member_id)
    core.advance(1)

    core.ask(HeartbeatMany(*KEY, tuple(MemberHeartbeat(m, 1) for m in ("m0", "m1", "m2", "m0"))))

    gaps = [core.group.members[m].gaps for m in ("m0", "m1", "m2")]
    assert [each and each.classes for each in gaps] == [{gap_class(12): 1, 0: 1}, {2: 1}, {1: 1}]
    assert [each and each.longest_ms for each in gaps] == [12, 2, 1]


def forget_gaps(core: Core, member_id: str) -> None:
    core.group.members[member_id].gaps = None


@pytest.mark.parametrize(("share", "gap_ms"), [(0.0, 1), (0.25, 1), (0.26, 2), (0.75, 2), (0.76, 3), (1.0, 3)])
def test_a_quantile_is_the_end_of_a_class(share: float, gap_ms: int) -> None:
    assert quantile_ms({3: 1, 1: 1, 2: 2}, share) == gap_ms


def test_without_gaps_there_is_no_quantile() -> None:
    assert quantile_ms({}, 0.5) is None
    assert quantile_ms({4: 0}, 0.0) is None


def test_the_gaps_of_a_member_are_written_once_an_interval() -> None:
    core = a_stable_group(members=1, limits=replace(LIMITS, session_stats_interval_ms=INTERVAL_MS))
    core.advance(1_000)
    core.ask(a_heartbeat("m0", 1))
    since_ms, first_ms = core.group.members["m0"].gaps.since_ms, core.group.members["m0"].gaps.longest_ms  # type: ignore[union-attr]
    core.advance(2_000)
    core.ask(a_heartbeat("m0", 1))
    core.advance(since_ms + INTERVAL_MS - core.now_ms - 1)
    core.sweep()
    assert "session_stats" not in core.kinds()
    core.advance(1)

    core.sweep()

    counted = sorted([(gap_class(first_ms), 1), (gap_class(2_000), 1)])
    assert core.last("session_stats").members == (("m0", "", SESSION_MS, since_ms, 2_000, tuple(counted)),)
    core.advance(INTERVAL_MS)
    core.sweep()
    assert core.kinds().count("session_stats") == 1, "nothing was seen since"


def test_no_gaps_are_written_where_the_interval_is_0() -> None:
    core = a_stable_group(members=1, limits=replace(LIMITS, session_stats_interval_ms=0))
    core.ask(a_heartbeat("m0", 1))
    core.advance(9_000)
    core.sweep()

    assert "session_stats" not in core.kinds()


def test_a_heartbeat_counts_the_time_since_the_last_one() -> None:
    core = a_stable_group(members=1)
    core.ask(a_heartbeat("m0", 1))
    core.advance(3_000)
    core.ask(a_heartbeat("m0", 1))

    gaps = core.group.members["m0"].gaps
    assert gaps is not None
    assert (gaps.longest_ms, gaps.classes[gap_class(3_000)]) == (3_000, 1)


def test_the_longest_of_gaps_of_no_time_is_none() -> None:
    core = a_stable_group(members=1)
    core.ask(a_heartbeat("m0", 1))
    forget_gaps(core, "m0")

    core.ask(a_heartbeat("m0", 1))

    gaps = core.group.members["m0"].gaps
    assert gaps is not None
    assert (gaps.longest_ms, gaps.classes) == (0, {0: 1})
