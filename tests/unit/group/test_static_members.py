"""Static members: they come back under a new id, and the old one is fenced (KIP-345, KAFKA-9801)."""

from __future__ import annotations

from msgspec.structs import replace

from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode
from tests.unit.group.driver import (
    GROUP_ID,
    NAMESPACE,
    REBALANCE_MS,
    SESSION_MS,
    a_group_awaiting_its_assignment,
    a_heartbeat,
    a_join,
    a_stable_group,
    a_sync,
    an_empty_shard,
)


def test_returning_leader_has_to_skip_assigning() -> None:
    core = a_stable_group(members=2, static=2)

    reply = core.ask(a_join(new="again", instance="i0"))
    core.ask(a_sync("again", 1, "i0", m1=b"other"))

    assert (reply.skip_assignment, reply.leader_id) == (True, "again")
    assert core.group.members["m1"].assignment == b"m1"
    assert (core.group.state, core.generation_id) == ("Stable", 1)


def test_a_fenced_process_learns_the_host_of_the_other_one() -> None:
    core = a_stable_group(members=2, static=2)
    parked = core.send(replace(a_heartbeat("m1", 1, instance="i1"), wait_ms=20_000))

    core.ask(replace(a_join(new="again", instance="i1"), host="10.0.0.7", reason="deployed"))
    later = core.ask(a_heartbeat("m1", 1, instance="i1"))

    expected = "another process at 10.0.0.7 joined as i1"
    assert (core.answers[parked].detail, later.detail) == (expected, expected)
    assert core.last("member_fenced").reason == f"{expected}; client reason: deployed"


def test_parked_calls_of_the_old_id_are_fenced() -> None:
    core = a_group_awaiting_its_assignment(members=2, static=2)
    sync = core.send(a_sync("m1", 1, "i1"))
    beat = core.send(a_heartbeat("m1", 1, instance="i1", wait_ms=1_000))

    core.send(a_join(new="again", instance="i1"))

    assert {core.answer(sync).error, core.answer(beat).error} == {ErrorCode.FENCED_INSTANCE_ID}


def test_the_end_of_a_join_phase_restarts_sessions_of_the_absent() -> None:
    """As in Kafka: a static member that is away has a whole session from the generation on."""
    core = a_stable_group(members=2, static=1)
    core.send(a_join("m1", protocols=(("range", b"new"),)))
    for _ in range(REBALANCE_MS // 4_000):
        core.advance(4_000)
        core.ask(a_heartbeat("m0", 1, instance="i0"))

    core.let_the_join_phase_end()

    assert core.deadline_ms("m0") == core.now_ms + SESSION_MS


def test_a_join_phase_goes_on_where_static_members_are_away() -> None:
    core = a_stable_group(members=2, static=1)
    core.send(a_join("m1", protocols=(("range", b"new"),)))
    core.ask(m.LeaveGroup(NAMESPACE, GROUP_ID, (m.LeavingMember("m1"),)))
    for _ in range(REBALANCE_MS // 5_000 + 1):
        core.advance(5_000)
        core.ask(a_heartbeat("m0", 1, instance="i0"))

    assert core.group.state == "PreparingRebalance"
    core.advance(SESSION_MS)
    assert core.group.state == "Empty"


def test_a_group_without_a_leader_does_not_keep_its_owner_busy() -> None:
    core = an_empty_shard()
    core.send(a_join(new="m0", instance="i0", rebalance_ms=1))
    while core.group.state == "PreparingRebalance":
        core.fire_next()
    core.ask(a_sync("m0", 1, "i0", m0=b""))
    core.ask(m.RebalanceGroup(NAMESPACE, GROUP_ID))
    end_ms, fired = core.now_ms + SESSION_MS // 2, 0

    while core.now_ms < end_ms:
        assert core.fire_next()
        fired += 1
        assert fired <= SESSION_MS // 2 // 100 + 1

    assert core.group.state == "PreparingRebalance"


def test_an_administrator_removes_a_static_member_by_instance() -> None:
    core = a_stable_group(members=2, static=1)
    leaving = (m.LeavingMember(group_instance_id="i0"), m.LeavingMember(group_instance_id="i9"))

    reply = core.ask(m.LeaveGroup(NAMESPACE, GROUP_ID, leaving, by_admin=True))

    assert [member.error for member in reply.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert core.last("member_removed").group_instance_id == "i0"


def test_a_resync_to_an_abandoned_id_rebalances() -> None:
    core = a_stable_group(members=2, static=2)
    core.ask(a_join(new="again", instance="i1"))

    reply = core.ask(a_sync("m0", 1, "i0", m0=b"all", m1=b"what was there"))

    assert reply.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert core.group.members["again"].assignment == b"m1"
    assert "assigned to m1, which is no member any more" in core.group.rebalance_reason
