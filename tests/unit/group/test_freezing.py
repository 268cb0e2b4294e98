"""Freezes: newcomers, changes of topics and preemptions wait; failures and leaves do not."""

from __future__ import annotations

import pytest

from rota.core.types import TopicFacts
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import DescribeGroup, FreezeGroup, JoinGroup, RebalanceGroup
from rota.protocol.texts import TOPICS_CHANGED
from tests.unit.group.driver import (
    GROUP_ID,
    NAMESPACE,
    SESSION_MS,
    Core,
    a_group_in_its_initial_delay,
    a_heartbeat,
    a_join,
    a_leave,
    a_stable_group,
    a_sync,
    everybody_again,
)
from tests.unit.group.served import SERVER_STICKY, a_served_group, finish, hand_in, the_job
from tests.unit.group.test_preemption import HOLD_MS, a_race, election
from tests.unit.group.test_preemption import keep_alive as keep_candidates_alive

FOR_MS = 60_000


def freeze(core: Core, for_ms: int = FOR_MS, reason: str = "a deploy") -> int | None:
    reply = core.ask(FreezeGroup(NAMESPACE, GROUP_ID, for_ms, reason))
    assert reply.error is ErrorCode.NONE
    until_ms: int | None = reply.frozen_until_ms
    return until_ms


def keep_alive(core: Core, ms: int) -> None:
    for _ in range(ms // 1_000):
        core.advance(1_000)
        for member_id in list(core.group.members):
            core.ask(a_heartbeat(member_id, core.generation_id))


def topics_changed(member_id: str, protocols: tuple[tuple[str, bytes], ...] = (("range", b""),)) -> JoinGroup:
    request = a_join(member_id, protocols=protocols)
    return JoinGroup(
        NAMESPACE,
        GROUP_ID,
        request.protocol_type,
        request.protocols,
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        member_id,
        reason=f"{TOPICS_CHANGED}: docs 64 → 96",
    )


def test_a_newcomer_waits_until_the_freeze_ends() -> None:
    core = a_stable_group(members=2)
    freeze(core)

    refused = core.ask(a_join(new="m2"))

    assert refused.error is ErrorCode.THROTTLED
    assert refused.detail == f"newcomers wait: the group is frozen for {FOR_MS // 1000} s more (a deploy)"
    assert (core.group.state, core.generation_id, core.group.pending) == ("Stable", 1, {})
    keep_alive(core, FOR_MS)
    assert core.ask(a_join(new="m2")).error is ErrorCode.MEMBER_ID_REQUIRED


def test_a_long_freeze_without_a_reason_is_explained() -> None:
    core = a_stable_group(members=1)
    freeze(core, 3_600_000, "")

    assert core.ask(a_join(new="m2")).detail == "newcomers wait: the group is frozen for 3600 s more"


def test_a_newcomer_that_has_an_id_and_a_static_one_wait_as_well() -> None:
    core = a_stable_group(members=1)
    core.ask(a_join(new="m2"))
    freeze(core)

    refused = core.ask(a_join("m2"))
    assert (refused.error, refused.member_id) == (ErrorCode.THROTTLED, "m2")
    assert core.ask(a_join(new="i-1", instance="i")).error is ErrorCode.THROTTLED


def test_leaves_and_expiries_rebalance_and_admit_newcomers() -> None:
    core = a_stable_group(members=3)
    freeze(core)

    core.ask(a_leave("m2"))
    assert core.group.state == "PreparingRebalance"

    assert core.ask(a_join(new="m3")).error is ErrorCode.MEMBER_ID_REQUIRED
    core.send(a_join("m3"))
    everybody_again(core)
    assert list(core.group.members) == ["m0", "m1", "m3"]


def test_a_silent_member_expires_all_the_same() -> None:
    core = a_stable_group(members=2)
    freeze(core)
    for _ in range(SESSION_MS // 1_000 + 1):
        core.advance(1_000)
        core.ask(a_heartbeat("m0", 1))

    assert core.group.state == "PreparingRebalance"


def test_a_leader_joining_for_topics_rebalances_at_the_end() -> None:
    core = a_stable_group(members=2)
    freeze(core)

    joined = core.ask(topics_changed("m0"))
    assert (joined.error, joined.generation_id, joined.leader_id) == (ErrorCode.NONE, 1, "m0")
    assigned = core.ask(a_sync("m0", 1, m0=b"anew", m1=b"anew"))
    assert (assigned.error, assigned.generation_id, assigned.assignment) == (ErrorCode.NONE, 1, b"m0")

    keep_alive(core, FOR_MS - 1_000)
    assert core.group.state == "Stable"
    core.advance(1_000)
    assert core.group.state == "PreparingRebalance"
    started = core.last("rebalance_started")
    assert (started.cause, started.by) == ("topics_changed", "")
    assert started.reason.endswith("; held back until the freeze ended")


def test_a_follower_waits_unless_it_revoked_something() -> None:
    core = a_stable_group(members=2)
    freeze(core)

    assert core.ask(topics_changed("m1", (("range", b"other topics"),))).generation_id == 1
    core.send(a_join("m1", protocols=(("range", b"gave up what was revoked"),)))

    assert core.group.state == "PreparingRebalance"


def test_the_servers_assignment_of_changed_topics_waits() -> None:
    core = a_served_group(members=2)
    finish(core)
    freeze(core)
    before = {member_id: member.assignment for member_id, member in core.group.members.items()}
    job = the_job(core)

    hand_in(core, job.side.assign(job.generation, {"documents": TopicFacts(40)}), job)

    assert {member_id: member.assignment for member_id, member in core.group.members.items()} == before
    assert (core.group.state, core.generation_id) == ("Stable", 1)


def test_a_better_candidate_waits() -> None:
    core = a_race(1, 5)
    until_ms = freeze(core, 10_000)
    assert core.ask(DescribeGroup(NAMESPACE, GROUP_ID)).preempt_at_ms == until_ms

    keep_candidates_alive(core, 9_900)
    assert not election(core, "m0").successor_id

    keep_candidates_alive(core, 200)
    assert election(core, "m0").successor_id == "m1"


def test_an_early_end_of_a_freeze_lets_a_better_candidate_lead() -> None:
    core = a_race(1, 5)
    freeze(core)
    keep_candidates_alive(core, HOLD_MS)

    assert freeze(core, 0) is None
    core.advance(0)

    assert election(core, "m0").successor_id == "m1"
    assert core.last("group_unfrozen").reason == "a deploy"


def test_an_administrator_must_unfreeze_before_a_rebalance() -> None:
    core = a_stable_group(members=2)
    freeze(core)

    refused = core.ask(RebalanceGroup(NAMESPACE, GROUP_ID, step_down=True))
    assert (refused.error, refused.detail.endswith("unfreeze it first")) == (ErrorCode.INVALID_REQUEST, True)

    freeze(core, 0)
    described = core.ask(DescribeGroup(NAMESPACE, GROUP_ID))
    assert (described.frozen_until_ms, described.frozen_reason) == (None, "")
    assert core.ask(RebalanceGroup(NAMESPACE, GROUP_ID)).error is ErrorCode.NONE


def test_a_freeze_is_prolonged_and_described() -> None:
    core = a_stable_group(members=2)
    freeze(core, 5_000)
    until_ms = freeze(core, 20_000, "a longer deploy")

    keep_alive(core, 10_000)

    described = core.ask(DescribeGroup(NAMESPACE, GROUP_ID))
    assert (described.frozen_until_ms, described.frozen_reason) == (until_ms, "a longer deploy")
    assert core.ask(a_join(new="m2")).error is ErrorCode.THROTTLED


def test_a_freeze_that_held_nothing_back_ends_in_silence() -> None:
    core = a_stable_group(members=2)
    freeze(core, 5_000)
    lines = core.kinds()

    keep_alive(core, 6_000)

    assert (core.group.state, core.generation_id, core.kinds()) == ("Stable", 1, lines)


@pytest.mark.parametrize("for_ms", [0, 5_000])
def test_a_freeze_ends_once_where_it_was_shortened(for_ms: int) -> None:
    """The end asks for an assignment by the topics of now. The former end's timer must not do so again."""
    core = a_served_group(members=2)
    finish(core)
    freeze(core, 20_000)
    freeze(core, for_ms)
    end_ms = core.now_ms + for_ms

    keep_alive(core, 21_000)

    assert core.group.asked_ms == end_ms


@pytest.mark.parametrize("served", [True, False])
def test_a_new_owner_keeps_the_freeze_and_rejoins_at_its_end(served: bool) -> None:
    core = a_served_group(members=2) if served else a_stable_group(members=2)
    if served:
        finish(core)
    freeze(core)
    core.restart()

    like_them = a_join(new="m2", protocols=SERVER_STICKY, protocol_type="consumer") if served else a_join(new="m2")
    assert core.ask(like_them).error is ErrorCode.THROTTLED
    keep_alive(core, FOR_MS)

    assert core.group.state == ("Stable" if served else "PreparingRebalance")
    assert core.ask(DescribeGroup(NAMESPACE, GROUP_ID)).frozen_until_ms is not None


def test_an_unknown_or_new_group_cannot_be_frozen() -> None:
    core = a_stable_group(members=1)

    unknown = core.ask(FreezeGroup(NAMESPACE, "unknown", 1_000))

    assert unknown.error is ErrorCode.GROUP_ID_NOT_FOUND
    new = a_group_in_its_initial_delay().ask(FreezeGroup(NAMESPACE, GROUP_ID, 1_000))
    assert (new.error, new.detail) == (ErrorCode.INVALID_REQUEST, "the group has had no generation yet")
