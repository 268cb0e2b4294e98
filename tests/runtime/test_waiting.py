"""Calls that park: they answer when something happens, when their time is over, or when the server stops."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from rota.core.replica.ports import Answer
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    DescribeGroup,
    DescribeReply,
    GetLeader,
    Heartbeat,
    JoinReply,
    LeaderReply,
    Protocol,
    SyncGroup,
)
from rota.server.runtime.coordinator import LocalCoordinator
from tests.runtime.conftest import a_join, a_stable_member


async def described(coordinator: LocalCoordinator) -> DescribeReply:
    reply = (await coordinator.call(DescribeGroup("default", "g"))).reply
    assert isinstance(reply, DescribeReply)
    return reply


async def test_a_join_that_timed_out_is_pending_and_stays_joined(coordinator: LocalCoordinator) -> None:
    await a_stable_member(coordinator)

    pending = (await coordinator.call(a_join(instance="i2", wait_ms=0))).reply

    assert isinstance(pending, JoinReply)
    assert pending.pending
    assert pending.error is ErrorCode.NONE
    assert pending.member_id in {m.member_id for m in (await described(coordinator)).members if m.joined}


async def test_a_pending_join_goes_on_with_the_next_poll(coordinator: LocalCoordinator) -> None:
    leader = await a_stable_member(coordinator)
    pending = (await coordinator.call(a_join(instance="i2", wait_ms=0))).reply
    assert isinstance(pending, JoinReply)

    poll = asyncio.create_task(coordinator.call(a_join(instance="i2", member_id=pending.member_id)))
    await asyncio.sleep(0)
    again = (await coordinator.call(a_join(instance="i1", member_id=leader.member_id))).reply
    joined = (await poll).reply

    assert isinstance(again, JoinReply)
    assert isinstance(joined, JoinReply)
    assert again.generation_id == joined.generation_id == leader.generation_id + 1
    assert not joined.pending


async def test_a_client_that_hangs_up_keeps_its_members_session(
    coordinator: LocalCoordinator,
) -> None:
    await a_stable_member(coordinator)
    call = asyncio.create_task(coordinator.call(a_join(instance="i2")))
    await asyncio.sleep(0)
    suspended = [m.session_deadline_ms for m in (await described(coordinator)).members if m.group_instance_id == "i2"]

    call.cancel()
    with suppress(asyncio.CancelledError):
        await call

    (member,) = [m for m in (await described(coordinator)).members if m.group_instance_id == "i2"]
    assert suspended == [None]
    assert member.session_deadline_ms is not None
    assert coordinator.parked() == 0


async def test_nothing_is_kept_of_calls_that_were_parked(coordinator: LocalCoordinator) -> None:
    leader = await a_stable_member(coordinator)
    beat = Heartbeat("default", "g", leader.member_id, leader.generation_id, wait_ms=10_000)
    answered, given_up = (asyncio.create_task(coordinator.call(beat)) for _ in range(2))
    await asyncio.sleep(0)
    parked = coordinator.parked()

    given_up.cancel()
    await coordinator.call(a_join(instance="i2", wait_ms=0))
    await answered

    assert parked == 1
    assert coordinator.parked() == 0


async def test_asking_for_the_leader_waits_for_the_next_generation(coordinator: LocalCoordinator) -> None:
    first = await a_stable_member(coordinator)
    request = GetLeader("default", "g", after_generation=first.generation_id, wait_ms=10_000)
    waiting = asyncio.create_task(coordinator.call(request))
    await asyncio.sleep(0)
    was_waiting = not waiting.done()

    await coordinator.call(a_join(instance="i1", member_id=first.member_id))
    answer = (await waiting).reply

    assert was_waiting
    assert isinstance(answer, LeaderReply)
    assert answer.generation_id == first.generation_id + 1
    assert answer.leader_id == first.member_id


async def test_draining_answers_parked_calls_and_accepts_none(coordinator: LocalCoordinator) -> None:
    await a_stable_member(coordinator)
    parked = asyncio.create_task(coordinator.call(a_join(instance="i2")))
    await asyncio.sleep(0)

    await coordinator.drain()
    late = await coordinator.call(a_join(instance="i3"))

    assert (await parked).reply.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert late.reply.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.ready() == (False, "draining")


async def test_watching_a_group_shows_its_past_and_then_its_present(coordinator: LocalCoordinator) -> None:
    leader = await a_stable_member(coordinator)
    seen: list[str] = []

    async def watch() -> None:
        async for event in coordinator.watch("default", "g", 0):
            seen.append(event.kind)
            if event.kind == "assignment_synced":
                await coordinator.call(a_join(instance="i1", member_id=leader.member_id))
            if seen.count("generation_completed") == 2:
                return

    async with asyncio.timeout(60):
        await watch()

    assert seen == [
        "member_joined",
        "rebalance_started",
        "generation_completed",
        "leader_changed",
        "assignment_synced",
        "rebalance_started",
        "generation_completed",
    ]


async def test_a_change_while_the_first_answer_is_made_is_not_missed(
    coordinator: LocalCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group changes between the question and the wait: a wait for the next leader would last its 5 s."""
    leader = await a_stable_member(coordinator)
    submit, asked = coordinator._submit, 0

    async def submit_and_change(request: Any) -> Answer:
        nonlocal asked
        answer = await submit(request)
        if isinstance(request, GetLeader):
            asked += 1
            if asked == 1:
                await submit(a_join(member_id=leader.member_id, protocols=(Protocol("p", b"new"),)))
                await submit(SyncGroup("default", "g", leader.member_id, leader.generation_id + 1))
        return answer

    monkeypatch.setattr(coordinator, "_submit", submit_and_change)
    request = GetLeader("default", "g", after_generation=leader.generation_id, wait_ms=5_000)
    answer = await coordinator.call(request)

    assert isinstance(answer.reply, LeaderReply)
    assert (answer.reply.generation_id, asked) == (leader.generation_id + 1, 2)
