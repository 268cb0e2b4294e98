"""Frozen groups with consumers of the SDK: newcomers and changes of topics wait, and come at the end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from rota.client import Consumer
from tests.client.stage import GROUP, SESSION_S, Worker, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time

FREEZE_S = 30.0
STRATEGIES = ["range", "cooperative-sticky", "server:sticky"]


async def joined(worker: Worker, stack: AsyncExitStack, strategy: str, topics: list[str] | None = None) -> Consumer:
    consumer = worker.client.consumer(GROUP, topics or ["docs"], strategy, session_timeout=SESSION_S)
    return await stack.enter_async_context(consumer)


@pytest.mark.parametrize("strategy", STRATEGIES)
@in_virtual_time
async def test_a_newcomer_gets_its_share_when_the_freeze_is_over(strategy: str) -> None:
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        first, second = a_worker(coordinator), a_worker(coordinator)
        await first.client.put_topic("docs", 6)
        early = await joined(first, stack, strategy)
        await until(lambda: len(early.assignment or ()) == 6)
        await first.client.freeze_group(GROUP, FREEZE_S, "a deploy")

        late = await joined(second, stack, strategy)
        await asyncio.sleep(FREEZE_S - 2)
        assert (len(early.assignment or ()), late.assignment) == (6, None)
        assert "frozen" in late.trouble

        await until(lambda: len(early.assignment or ()) == len(late.assignment or ()) == 3)


@in_virtual_time
async def test_members_drain_one_at_a_time() -> None:
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        workers = [a_worker(coordinator) for _ in range(3)]
        admin = workers[0].client
        await admin.put_topic("docs", 6)
        members = [await joined(each, stack, "cooperative-sticky") for each in workers]
        await until(lambda: [len(each.assignment or ()) for each in members] == [2, 2, 2])
        await asyncio.sleep(1)

        granted = await admin.drain_member(GROUP, members[1].member_id)
        refused = await admin.drain_member(GROUP, members[2].member_id)
        await members[1].close()
        await until(lambda: len(members[0].assignment or ()) + len(members[2].assignment or ()) == 6)
        await asyncio.sleep(1)

        assert (granted.granted, refused.granted) == (True, False)
        assert (await admin.drain_member(GROUP, members[2].member_id)).granted
