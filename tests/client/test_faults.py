"""Faults between a member and its coordinator, and when each side notices: answers lost, loops blocked."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

import pytest

import rota
from rota.client import LeadershipLost, OffsetToCommit, Term
from rota.protocol.messages import CommitOffsets
from tests.client.stage import GROUP, SESSION_S, TOPICS, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time

BLOCKED_S = 1.0
"""A session that a blocking call outlasts."""


@in_virtual_time
async def test_a_commit_without_an_answer_is_retried_and_counts_once() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with worker.client.consumer(GROUP, TOPICS, session_timeout=SESSION_S) as consumer:
            await consumer.wait_assigned()
            worker.cable.lost_answers = [CommitOffsets, CommitOffsets]
            await consumer.commit([OffsetToCommit("work", 0, 5)])
            assert (await consumer.committed())[("work", 0)] == 5  # type: ignore[index]
            commits = [request for request in worker.cable.requests if isinstance(request, CommitOffsets)]
            assert len(commits) == 3


# --- blocked event loops ------------------------------------------------------------------------


async def block(term: Term, seconds: float) -> None:
    """A callback that blocks the event loop, which no program should do."""
    async with term:
        time.sleep(seconds)  # noqa: ASYNC251
        assert not term.is_valid
        await asyncio.Event().wait()


async def test_a_blocked_loop_ends_the_term_with_the_reason(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with rota.connect(url) as client, client.leader("writer", session_timeout=1.0) as election:
        term = await anext(election.terms())
        async with rota.connect(url) as other, other.leader("writer", session_timeout=60.0):
            with caplog.at_level(logging.WARNING, "rota.client.clock"), pytest.raises(LeadershipLost):
                await block(term, 1.5)
            await until(lambda: client.lag.worst >= 1)
        assert "the event loop was blocked for" in caplog.text


async def test_heartbeats_of_a_thread_keep_a_blocked_loops_term(url: str) -> None:
    async with rota.connect(url, heartbeat_thread=True) as client:
        async with client.leader("writer", session_timeout=2.0) as election:
            term = await anext(election.terms())
            token = term.fencing_token
            time.sleep(2.5)  # noqa: ASYNC251
            assert term.is_valid
            await asyncio.sleep(0.5)
            assert (term.is_valid, term.fencing_token) == (True, token)
        assert client.lag.worst >= 2


async def test_an_assign_that_blocks_past_the_session_is_kept_alive(url: str) -> None:
    def slow(topics: Sequence[str]) -> dict[str, int]:
        time.sleep(2.5 * BLOCKED_S)  # What a blocking call to a database would be.
        return dict.fromkeys(topics, 4)

    async with rota.connect(url, heartbeat_thread=True) as client, asyncio.timeout(60):
        async with client.consumer(GROUP, "work", partitions_per_topic=slow, session_timeout=BLOCKED_S) as consumer:
            assert len((await consumer.wait_assigned()).share) == 4
            assert consumer.generation_id == 1
