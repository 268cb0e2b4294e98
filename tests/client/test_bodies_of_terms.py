"""A term with several tasks in its block, or with one that enters it again: the end of the term cancels each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rota.client import Election, LeadershipLost, Term
from tests.client.stage import SESSION_S, Cable, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time


@asynccontextmanager
async def two_candidates() -> AsyncIterator[tuple[Election, Cable, Election]]:
    """One that leads, with its cable, and one that waits."""
    async with a_coordinator() as coordinator:
        first, second = a_worker(coordinator, "first"), a_worker(coordinator, "second")
        async with (
            first.client.leader("writers", session_timeout=SESSION_S) as leader,
            second.client.leader("writers", session_timeout=SESSION_S) as other,
        ):
            await until(lambda: leader.is_leader)
            yield leader, first.cable, other


async def until_another_leads(cable: Cable, other: Election) -> float:
    """Cut the leader off. Returns when the other one has led for a session, and the time at which it began."""
    cable.pull()
    await until(lambda: other.is_leader)
    led_at = asyncio.get_running_loop().time()
    await asyncio.sleep(SESSION_S)
    return led_at


async def steps(term: Term, done: list[float]) -> None:
    async with term:
        while True:
            done.append(asyncio.get_running_loop().time())
            await asyncio.sleep(0.05)


@in_virtual_time
async def test_a_loss_cancels_all_tasks_in_the_block_of_a_term() -> None:
    async with two_candidates() as (leader, cable, other):
        term = leader.term
        assert term is not None
        done: list[float] = []
        tasks = [asyncio.create_task(steps(term, done)) for _ in range(3)]
        await until(lambda: len(done) > 10)

        led_at = await until_another_leads(cable, other)

        assert max(done) < led_at
        for task in tasks:
            with pytest.raises(LeadershipLost):
                task.result()


@in_virtual_time
async def test_work_that_enters_its_term_again_is_still_cancelled() -> None:
    async with two_candidates() as (leader, cable, other):
        done: list[float] = []

        async def work(term: Term) -> None:
            async with term:
                done.append(asyncio.get_running_loop().time())
            while True:
                done.append(asyncio.get_running_loop().time())
                await asyncio.sleep(0.05)

        running = asyncio.create_task(leader.run(work))
        await until(lambda: len(done) > 10)

        led_at = await until_another_leads(cable, other)

        assert max(done) < led_at
        assert not running.done()
        running.cancel()


@in_virtual_time
async def test_a_handover_waits_for_all_tasks_in_the_block() -> None:
    async with two_candidates() as (leader, _cable, other):
        term = leader.term
        assert term is not None
        cleaned_at: list[float] = []

        async def work(clean_s: float) -> None:
            try:
                async with term:
                    try:
                        await asyncio.sleep(3600)
                    finally:
                        await asyncio.sleep(clean_s)
                        cleaned_at.append(asyncio.get_running_loop().time())
            except LeadershipLost:
                return

        slow, quick = asyncio.create_task(work(1.0)), asyncio.create_task(work(0.1))
        await asyncio.sleep(0.1)
        await leader.resign("for the test")
        await until(lambda: other.is_leader)

        assert len(cleaned_at) == 2
        assert asyncio.get_running_loop().time() >= max(cleaned_at)
        await asyncio.gather(slow, quick)
