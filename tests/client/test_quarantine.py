"""Quarantine with pools of the SDK: a shard whose work raises again and again is left out, and the others go on."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from rota.client import Shard
from tests.client.stage import GROUP, SESSION_S, Worker, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time

POISON = "docs/3"


async def index(shard: Shard) -> None:
    if f"{shard.topic}/{shard.partition}" == POISON:
        raise ValueError("a broken document")
    await shard.stopping.wait()


async def restarted(worker: Worker, strategy: str, falls: list[str]) -> None:
    """A pool whose supervisor starts it again."""
    while True:
        pool = worker.client.worker_pool(GROUP, ["docs"], index, strategy, session_timeout=SESSION_S)
        try:
            await pool.run(handle_signals=False)
        except ValueError as error:
            falls.append(str(error))


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky", "server:sticky"])
@in_virtual_time
async def test_a_shard_that_fells_its_pools_is_left_out(strategy: str) -> None:
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        first, second = a_worker(coordinator), a_worker(coordinator)
        admin, falls = first.client, list[str]()
        await admin.put_topic("docs", 6)
        async with admin.consumer(GROUP, ["docs"], strategy, session_timeout=SESSION_S) as consumer:
            await until(lambda: len(consumer.assignment or ()) == 6)
            await admin.quarantine_group(GROUP, after_falls=3)
        for worker in (first, second):
            task = asyncio.create_task(restarted(worker, strategy, falls))
            stack.callback(task.cancel)

        await asyncio.sleep(120)
        described = await admin.describe_group(GROUP)
        assert (described.quarantined, falls) == ((POISON,), ["a broken document"] * 3)
        assert (described.state, len(described.members)) == ("Stable", 2)

        released = await admin.quarantine_group(GROUP, release=[POISON], reason="it is fixed, they say")
        assert released.quarantined == ()
        await asyncio.sleep(120)
        assert len(falls) == 6
