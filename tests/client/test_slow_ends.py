"""Work and callbacks that outlast the end of their member, in virtual time: the log, and when another takes over."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from rota.client import Election, Shard, WorkerPool
from rota.protocol.defaults import STOP_REST_MS
from tests.client.stage import GROUP, SESSION_S, TOPICS, Partitions, Worker, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time

CLOSE_S = 2.0


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == level and each.name.startswith("rota.")]


# --- on_revoked that outlasts the close ---------------------------------------------------------


@pytest.mark.parametrize("kind", ["consumer", "connect_worker", "member"])
@in_virtual_time
async def test_a_cut_off_on_revoked_is_not_repeated_before_the_leave(kind: str) -> None:
    calls: list[str] = []

    async def on_revoked(removed: object) -> None:
        calls.append("called")
        await asyncio.sleep(60)

    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        member = a_member(worker, kind, on_revoked=on_revoked)
        await member.start()
        await member.wait_assigned()
        began_at = asyncio.get_running_loop().time()
        await member.close(timeout=CLOSE_S)
        assert asyncio.get_running_loop().time() < began_at + CLOSE_S + STOP_REST_MS / 1000
        assert (calls, worker.leaves) == (["called"], 1)


def a_member(worker: Worker, kind: str, **callbacks: Any) -> Any:
    client = worker.client
    if kind == "consumer":
        return client.consumer(GROUP, TOPICS, session_timeout=SESSION_S, **callbacks)
    if kind == "connect_worker":
        return client.connect_worker(GROUP, (), session_timeout=SESSION_S, **callbacks)
    return client.member(
        GROUP,
        protocol_type="own",
        protocols={"v1": b""},
        assign=lambda generation: {member.member_id: b"all" for member in generation.members},
        session_timeout=SESSION_S,
        **callbacks,
    )


@in_virtual_time
async def test_on_revoked_is_called_for_the_part_still_missing() -> None:
    """A partition moves when the consumer is closed: the program has not been notified of the others."""
    calls: list[int] = []

    async def on_revoked(removed: Partitions) -> None:
        calls.append(len(removed))
        if len(calls) == 1:
            await asyncio.sleep(60)

    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        consumer = worker.client.consumer(GROUP, TOPICS, session_timeout=60.0, on_revoked=on_revoked)
        await consumer.start()
        await consumer.wait_assigned()
        async with a_worker(coordinator, "other").client.consumer(GROUP, TOPICS, session_timeout=60.0):
            await until(lambda: len(calls) == 1)
            await consumer.close(timeout=CLOSE_S)
        assert calls == [6, 6]


# --- work that ignores its cancellation ---------------------------------------------------------


async def ignores_its_cancellation(_subject: object) -> None:
    ends_at = asyncio.get_running_loop().time() + 45
    while (left_s := ends_at - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left_s)
        except asyncio.CancelledError:
            continue


def an_election_and_its_run(worker: Worker) -> tuple[Election, Any]:
    election = worker.client.leader(GROUP, session_timeout=SESSION_S)
    return election, election.run(ignores_its_cancellation)


def a_pool_and_its_run(worker: Worker) -> tuple[WorkerPool, Any]:
    work = ignores_its_cancellation
    pool = worker.client.worker_pool(GROUP, {"work": 1}, work, session_timeout=SESSION_S)
    return pool, pool.run()


async def cleans_up_for_three_seconds(_subject: object) -> None:
    try:
        await asyncio.sleep(45)
    finally:
        await asyncio.sleep(3)


def an_election(worker: Worker) -> tuple[Election, Any]:
    election = worker.client.leader(GROUP, session_timeout=SESSION_S)
    return election, election.run(cleans_up_for_three_seconds)


def a_pool(worker: Worker) -> tuple[WorkerPool, Any]:
    pool = worker.client.worker_pool(GROUP, {"work": 1}, cleans_up_for_three_seconds, session_timeout=SESSION_S)
    return pool, pool.run()


@pytest.mark.parametrize("make", [an_election, a_pool])
@in_virtual_time
async def test_the_group_is_left_after_work_that_cleans_up_slowly(make: Any) -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        kind, run = make(worker)
        running = asyncio.create_task(run)
        await until(lambda: "the work of" in kind._describe_work())
        await kind.close(timeout=3)
        assert worker.leaves == 1
        assert not (await worker.client.describe_group(GROUP)).members
        await asyncio.wait((running,))


@pytest.mark.parametrize(
    ("make", "name"),
    [(an_election_and_its_run, f"the work of election {GROUP}"), (a_pool_and_its_run, "the work of work/0")],
)
@in_virtual_time
async def test_the_group_is_not_left_while_work_resists_cancellation(
    make: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        kind, run = make(worker)
        running = asyncio.create_task(run)
        await until(lambda: name in kind._describe_work())
        await kind.close(timeout=CLOSE_S)
        assert worker.leaves == 0
        assert len((await worker.client.describe_group(GROUP)).members) == 1
        errors = lines(caplog, logging.ERROR)
        pattern = rf"{name}, cancelled (\d\.\d) s ago, ignores its cancellation"
        assert [float(seconds) for seconds in re.findall(pattern, "\n".join(errors[1:]))] == [
            pytest.approx(3.7, abs=0.1)
        ]
        assert f"{name}, cancelled 2.8 s ago, has not ended in time" in errors[0]
        await asyncio.sleep(21)
        waits = [line for line in lines(caplog, logging.WARNING) if "waiting for" in line]
        starts = tuple(f"group {GROUP}: waiting for {seconds} s for {name}, cancelled" for seconds in (10, 20))
        assert [wait.startswith(starts) for wait in waits] == [True, True]
        await asyncio.sleep(60)
        assert len([line for line in lines(caplog, logging.WARNING) if "waiting for" in line]) <= 5
        await asyncio.wait((running,))
        running.exception()


@in_virtual_time
async def test_a_candidate_leads_again_only_after_its_lost_work_ended() -> None:
    async with a_coordinator() as coordinator:
        worker, other = a_worker(coordinator, "a"), a_worker(coordinator, "b")
        async with worker.client.leader(GROUP, session_timeout=SESSION_S) as election:
            running = asyncio.create_task(election.run(ignores_its_cancellation))
            await until(lambda: election.is_leader)
            worker.cable.pull()
            await until(lambda: not election.is_leader)
            worker.cable.plug_in()
            async with other.client.leader(GROUP, session_timeout=SESSION_S) as second:
                await until(lambda: second.is_leader)
            await asyncio.sleep(10)
            assert (election.is_leader, running.done()) == (False, False)
            await running


# --- what the log says --------------------------------------------------------------------------


@in_virtual_time
async def test_an_ordered_end_of_an_election_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def wait(_term: object) -> None:
        await asyncio.Event().wait()

    caplog.set_level(logging.INFO)
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        election = worker.client.leader(GROUP, session_timeout=SESSION_S)
        running = asyncio.create_task(election.run(wait))
        await until(lambda: election.is_leader)
        await election.resign()
        await until(lambda: election.is_leader)
        election.stop()
        await running
        assert lines(caplog, logging.WARNING) == []
        text = "\n".join(lines(caplog, logging.INFO))
        assert "the leadership was handed over" in text
        assert "stopping in order" in text
        assert "second signal" not in text


@in_virtual_time
async def test_a_lost_leadership_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def wait(_term: object) -> None:
        await asyncio.Event().wait()

    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        election = worker.client.leader(GROUP, session_timeout=SESSION_S)
        running = asyncio.create_task(election.run(wait))
        await until(lambda: election.is_leader)
        worker.cable.pull()
        await until(lambda: not election.is_leader)
        worker.cable.plug_in()
        election.stop()
        await running
        assert f"election {GROUP}: the leadership was lost" in lines(caplog, logging.WARNING)


@in_virtual_time
async def test_a_member_closed_during_an_outage_stays_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with worker.client.leader(GROUP, session_timeout=SESSION_S):
            worker.cable.pull()
            await asyncio.sleep(4)
        assert "served again" not in caplog.text
        assert "closed while it was not served for" in caplog.text


@in_virtual_time
async def test_a_pool_that_comes_back_is_not_said_to_wait_for_its_work(caplog: pytest.LogCaptureFixture) -> None:
    async def work(shard: Shard) -> None:
        await asyncio.Event().wait()

    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with worker.client.worker_pool(GROUP, TOPICS, work, session_timeout=SESSION_S) as pool:
            await until(lambda: len(pool.shards) == 12)
            await pool.consumer.step_aside("enough")
            pool.consumer.come_back()
            await until(lambda: len(pool.shards) == 12)
            await asyncio.sleep(60)
        assert "waiting for" not in caplog.text


# --- a coordinator that hangs at a stop ---------------------------------------------------------


@pytest.mark.parametrize("drains", [True, False])
@in_virtual_time
async def test_a_stop_ends_in_time_where_the_coordinator_hangs(drains: bool, caplog: pytest.LogCaptureFixture) -> None:
    ends: list[str] = []

    async def work(shard: Shard) -> None:
        await shard.stopping.wait()
        try:
            shard.store(5)
            if drains:
                await shard.commit(11)
        except BaseException as error:
            ends.append(type(error).__name__)
            raise

    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        pool = worker.client.worker_pool(GROUP, {"work": 1}, work, session_timeout=60.0)
        running = asyncio.create_task(pool.run())
        await until(lambda: len(pool.shards) == 1)
        worker.cable.is_silent = True
        began_at = asyncio.get_running_loop().time()
        pool.stop()
        await running
        assert asyncio.get_running_loop().time() < began_at + 10
        assert bool(ends) == drains
        assert any(f"group {GROUP} was not left: no answer" in line for line in lines(caplog, logging.WARNING))


@in_virtual_time
async def test_a_consumer_stops_in_time_where_the_coordinator_hangs() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        consumer = worker.client.consumer(GROUP, TOPICS, session_timeout=60.0)
        running = asyncio.create_task(consumer.run())
        await consumer.wait_assigned()
        consumer.store("work", 3, 5)
        outcomes: list[object] = []
        consumer.commit_soon(then=lambda offsets, error: outcomes.append(error))
        worker.cable.is_silent = True
        began_at = asyncio.get_running_loop().time()
        consumer.stop()
        await running
        assert asyncio.get_running_loop().time() < began_at + 10
        assert len(outcomes) == 1


@in_virtual_time
async def test_progress_after_a_long_drain_is_committed_before_leaving() -> None:
    async def work(shard: Shard) -> None:
        await shard.stopping.wait()
        await asyncio.sleep(30)
        shard.store(11)

    async def on_revoked(removed: Partitions) -> None:
        await asyncio.sleep(20)
        consumer.store("work", 3, 7)

    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        pool = worker.client.worker_pool("pool", {"work": 1}, work, session_timeout=SESSION_S)
        consumer = worker.client.consumer(GROUP, TOPICS, session_timeout=SESSION_S, on_revoked=on_revoked)
        running = [asyncio.create_task(kind.run(drain_timeout=60.0)) for kind in (pool, consumer)]
        await until(lambda: len(pool.shards) == 1 and bool(consumer.assignment))
        pool.stop()
        consumer.stop()
        await asyncio.gather(*running)
        assert [(each.partition, each.offset) for each in await worker.client.offsets("pool")] == [(0, 11)]
        assert [(each.partition, each.offset) for each in await worker.client.offsets(GROUP)] == [(3, 7)]
        assert worker.leaves == 2
