"""Metrics of commits: their outcomes, and how old progress is that is not committed; in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from rota.client import MembershipLost, OffsetToCommit
from rota.protocol.messages import CommitOffsets
from tests.client.scrapes import Scrape
from tests.client.stage import GROUP, SESSION_S, TOPICS, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_commit_that_waits_is_lag_until_it_is_made() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        async with worker.member() as member:
            await member.wait_assigned()
            assert (scrape.of("commit_lag_seconds"), scrape.of("commit_age_seconds")) == (0, None)
            worker.cable.commits_may_go.clear()
            first = asyncio.create_task(member.commit([OffsetToCommit("work", 1, 5)]))
            await asyncio.sleep(2)
            second = asyncio.create_task(member.commit([OffsetToCommit("work", 2, 5)]))
            await asyncio.sleep(0.5)
            assert scrape.of("commit_lag_seconds") == pytest.approx(2.5, abs=0.01)
            worker.cable.commits_may_go.set()
            await asyncio.gather(first, second)
            await asyncio.sleep(1)
            assert scrape.of("commit_lag_seconds") == 0
            assert scrape.of("commit_age_seconds") == pytest.approx(1, abs=0.01)
            assert scrape.of("commits_total", outcome="ok") == scrape.of("commits_total") == 2


@in_virtual_time
async def test_stored_progress_is_lag_until_it_is_committed() -> None:
    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        scrape = Scrape(client)
        async with client.consumer(GROUP, TOPICS, session_timeout=SESSION_S) as consumer:
            await consumer.wait_assigned()
            consumer.store("work", 3, 1)
            await asyncio.sleep(4)
            consumer.store("work", 3, 2)
            assert scrape.of("commit_lag_seconds") == pytest.approx(4, abs=0.01)
            await consumer.commit()
            assert scrape.of("commit_lag_seconds") == 0
            await asyncio.sleep(4)
            consumer.store("work", 3, 3)
            assert scrape.of("commit_lag_seconds") == 0


@in_virtual_time
async def test_repeated_and_late_commits_have_different_errors() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        scrape = Scrape(worker.client)
        async with worker.member() as member:
            await member.wait_assigned()
            worker.cable.lost_answers = [CommitOffsets]
            await member.commit([OffsetToCommit("work", 1, 5)])
            labels = {"operation": "CommitOffsets"}
            assert scrape.of("calls_total", outcome="broken", **labels) == scrape.of("retries_total", **labels) == 1
            worker.cable.pull()
            await until(lambda: member.assignment is None)
            with pytest.raises(MembershipLost):
                await member.commit([OffsetToCommit("work", 1, 6)])
            assert scrape.of("commits_total", outcome="ok") == 1
            assert scrape.of("commits_total", outcome="not_held") == 1
            worker.cable.plug_in()
