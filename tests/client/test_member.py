"""A member against the real coordinator, in virtual time: its assignment, when it lets go, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rota.client import (
    CoordinatorUnreachable,
    FencedInstanceId,
    Generation,
    Member,
    MembershipLost,
    OffsetToCommit,
)
from rota.client.events import (
    Assigned,
    GenerationFailed,
    Lost,
    MemberEvent,
    RebalanceStarted,
    Revoked,
)
from rota.protocol.messages import Heartbeat, LeaveGroup
from tests.client.stage import (
    GROUP,
    SESSION_S,
    Partitions,
    Worker,
    a_coordinator,
    a_worker,
    all_partitions_are_shared,
    until,
)
from tests.client.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_silent_coordinator_costs_at_most_the_session() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with worker.member() as member:
            await member.wait_assigned()
            worker.cable.is_silent = True
            silent_at = asyncio.get_running_loop().time()
            valid_until = member.valid_until
            await until(lambda: "lost" in worker.deeds)
            assert member.assignment is None
            assert valid_until is not None
            assert valid_until - 0.001 < worker.when("lost") < silent_at + SESSION_S
            worker.cable.is_silent = False


@in_virtual_time
async def test_a_cancelled_member_stops_work_leaves_and_is_replaced() -> None:
    async with a_coordinator() as coordinator:
        doomed, heir = a_worker(coordinator, "doomed", drain_s=0.5), a_worker(coordinator, "heir")

        async def run() -> None:
            async with doomed.member(session_timeout=60.0):
                await asyncio.Event().wait()

        async with heir.member() as member:
            task = asyncio.create_task(run())
            await until(lambda: len(member.assignment or ()) == 6)
            task.cancel()
            cancelled_at = asyncio.get_running_loop().time()
            await asyncio.wait((task,))
            assert task.cancelled()
            await all_partitions_are_shared([member])
            assert doomed.deeds == ["assigned", "revoked"]
            assert cancelled_at + 0.5 <= doomed.when("revoked") <= heir.when("assigned") < cancelled_at + 1


@in_virtual_time
async def test_work_past_the_rebalance_timeout_is_lost_first() -> None:
    async with a_coordinator() as coordinator:
        stuck, newcomer = a_worker(coordinator, "stuck", drain_s=3_600), a_worker(coordinator, "new")
        async with stuck.member(rebalance_timeout=10.0) as member:
            await member.wait_assigned()
            async with newcomer.member(rebalance_timeout=10.0) as other:
                await other.wait_assigned()
                assert stuck.deeds == ["assigned", "lost"]
                assert stuck.when("lost") <= newcomer.when("assigned")
                stuck.drain_s = 0
                await all_partitions_are_shared([member, other])


@in_virtual_time
async def test_events_show_the_whole_story_in_order() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)

        async def all_events() -> list[type]:
            return [type(event) async for event in member.events()]

        async with worker.member() as member:
            watcher = asyncio.create_task(all_events())
            await member.wait_assigned()
            async with a_worker(coordinator).member() as other:
                await all_partitions_are_shared([member, other])
            await all_partitions_are_shared([member])
        assert await watcher == [
            Assigned,
            RebalanceStarted,
            Revoked,
            Assigned,
            RebalanceStarted,
            Revoked,
            Assigned,
            Revoked,
        ]


# --- commits and fences -----------------------------------------------------------------------


@in_virtual_time
async def test_an_undeliverable_commit_reports_that_no_answer_came() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with worker.member() as member:
            await member.wait_assigned()
            worker.cable.pull()
            with pytest.raises(CoordinatorUnreachable):
                await member.commit([OffsetToCommit("work", 0, 5)])
            assert member.assignment is None
            worker.cable.plug_in()


# --- leading ----------------------------------------------------------------------------------


@in_virtual_time
async def test_an_exception_of_the_leader_reaches_all_and_is_retried() -> None:
    async with a_coordinator() as coordinator:
        tries = []

        def assign(generation: Generation) -> dict[str, bytes]:
            tries.append(generation.generation_id)
            if len(tries) == 1:
                raise LookupError("no shards yet")
            return {member.member_id: b"share"}

        client = a_worker(coordinator).client
        async with client.member("g", protocol_type="worker", protocols={"even": b""}, assign=assign) as member:
            failed = await anext(member.events())
            assert isinstance(failed, GenerationFailed)
            assert "no shards yet" in failed.detail
            assigned = await member.wait_assigned()
            assert (assigned.share, tries) == (b"share", [1, 2])


@in_virtual_time
async def test_a_leader_that_assigns_past_its_session_stays_alive() -> None:
    async with a_coordinator() as coordinator:

        async def assign(generation: Generation) -> dict[str, bytes]:
            await asyncio.sleep(20)
            return {member.member_id: b"share"}

        member = a_worker(coordinator).client.member(
            "g", protocol_type="worker", protocols={"even": b""}, assign=assign, session_timeout=SESSION_S
        )
        async with member:
            assert (await member.wait_assigned()).generation_id == 1


# --- how it ends ------------------------------------------------------------------------------


@in_virtual_time
async def test_leaving_the_block_stops_work_first_and_then_leaves() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator, drain_s=5)
        async with worker.member() as member:
            await member.wait_assigned()
        assert worker.deeds == ["assigned", "revoked"]
        assert isinstance(worker.cable.requests[-1], LeaveGroup)
        assert isinstance(worker.cable.requests[-2], Heartbeat)
        assert (await worker.client.describe_group(GROUP)).state == "Empty"
        with pytest.raises(MembershipLost):
            await member.wait_assigned()


@in_virtual_time
async def test_a_leave_before_the_first_id_keeps_no_other_waiting() -> None:
    async with a_coordinator() as coordinator:
        stays, hasty = a_worker(coordinator), a_worker(coordinator)
        hasty.cable.naming_s = 1.0
        async with stays.member() as member:
            await member.wait_assigned()
            async with hasty.member(session_timeout=60.0):
                await until(lambda: bool(hasty.cable.requests))
            group = await stays.client.describe_group(GROUP)
            assert (group.state, len(group.members), group.pending_members) == ("Stable", 1, 0)


@in_virtual_time
async def test_an_exception_in_the_block_comes_out_unchanged() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        with pytest.raises(ZeroDivisionError):
            await fail_in_a_block(worker)
        assert worker.deeds == ["assigned", "revoked"]
        assert isinstance(worker.cable.requests[-1], LeaveGroup)


async def fail_in_a_block(worker: Worker) -> None:
    async with worker.member() as member:
        await member.wait_assigned()
        raise ZeroDivisionError


@in_virtual_time
async def test_an_exception_in_a_callback_ends_the_block_in_order() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        stopped: list[Partitions] = []

        def broken(added: object, held: object) -> None:
            raise ZeroDivisionError

        member = worker.client.consumer(GROUP, {"work": 1}, "range", on_assigned=broken, on_lost=stopped.append)
        with pytest.raises(ZeroDivisionError):
            async with member:
                await asyncio.Event().wait()
        assert stopped == [(("work", 0),)]
        assert (await worker.client.describe_group(GROUP)).state == "Empty"


@in_virtual_time
async def test_a_member_whose_instance_is_taken_over_ends() -> None:
    async with a_coordinator() as coordinator:
        old, new = a_worker(coordinator, "old"), a_worker(coordinator, "new")

        async def be_the_old_one() -> None:
            async with old.member(group_instance_id="pod-0"):
                await asyncio.Event().wait()

        task = asyncio.create_task(be_the_old_one())
        await until(lambda: old.deeds == ["assigned"])
        async with new.member(group_instance_id="pod-0") as heir:
            with pytest.raises(FencedInstanceId):
                await task
            assert old.deeds == ["assigned", "lost"]
            assert (await heir.wait_assigned()).generation_id == 1


@in_virtual_time
async def test_no_task_outlives_its_block() -> None:
    async with a_coordinator() as coordinator:
        before = asyncio.all_tasks()
        worker = a_worker(coordinator)
        async with worker.member() as member:
            await member.wait_assigned()
            worker.cable.pull()
            await asyncio.sleep(5)
        assert asyncio.all_tasks() == before


@in_virtual_time
async def test_on_lost_is_called_though_on_revoked_defies_cancellation() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        lost = asyncio.Event()
        free = asyncio.Event()

        async def stubborn(share: object) -> None:
            while not free.is_set():
                try:
                    await free.wait()
                except asyncio.CancelledError:
                    continue

        member = worker.client.consumer(
            GROUP,
            {"work": 1},
            "range",
            session_timeout=SESSION_S,
            on_revoked=stubborn,
            on_lost=lambda share: lost.set(),
        )
        async with member:
            await member.wait_assigned()
            member.rejoin("for the test")
            await asyncio.sleep(1)
            worker.cable.pull()
            await lost.wait()
            assert member.assignment is None
            free.set()
            worker.cable.plug_in()


@in_virtual_time
async def test_lost_events_name_what_was_lost_and_why() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with worker.member() as member:
            await member.wait_assigned()
            worker.cable.pull()
            (lost,) = [event async for event in until_lost(member) if isinstance(event, Lost)]
            assert (lost.generation_id, len(lost.share), lost.reason) == (1, 12, "deadline")
            worker.cable.plug_in()


async def until_lost(member: Member[Partitions]) -> AsyncIterator[MemberEvent[Partitions]]:
    async for event in member.events():
        yield event
        if isinstance(event, Lost):
            return
