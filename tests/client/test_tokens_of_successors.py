"""Static members in the SDK: a process that is started under the instance id of another has a higher fencing token."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from rota.client import Client, FencedInstanceId
from rota.protocol.fencing_token import fencing_token
from tests.client.stage import Cable, a_coordinator
from tests.client.virtual_time import in_virtual_time

LONG_S = 60


def a_client(coordinator: Any) -> Client:
    return Client(Cable(coordinator), client_id="w")


@in_virtual_time
async def test_consumers_with_one_instance_id_have_tokens_of_their_own() -> None:
    tokens: list[int] = []

    async def consume(coordinator: Any) -> None:
        with suppress(FencedInstanceId):
            async with a_client(coordinator).consumer("g", {"t": 2}, group_instance_id="pod-0") as consumer:
                assigned = await consumer.wait_assigned()
                tokens.append(assigned.fencing_token)
                assert (consumer.fencing_token, assigned.generation_id) == (assigned.fencing_token, 1)
                await asyncio.sleep(LONG_S)

    async with a_coordinator() as coordinator, asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(consume(coordinator))
            await asyncio.sleep(5)

    assert tokens == [fencing_token(1), fencing_token(1, 1), fencing_token(1, 2)]


@in_virtual_time
async def test_a_static_candidates_successor_has_a_higher_token() -> None:
    tokens: list[int] = []

    async def lead(coordinator: Any) -> None:
        with suppress(FencedInstanceId):
            async with a_client(coordinator).leader("g", group_instance_id="pod-0") as election:
                tokens.append((await anext(election.terms())).fencing_token)
                await asyncio.sleep(LONG_S)

    async with a_coordinator() as coordinator, asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(lead(coordinator))
            await asyncio.sleep(5)

    assert fencing_token(1) <= tokens[0] < tokens[1]
