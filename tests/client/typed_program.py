"""A user's program with each use of the SDK. Type checkers read it as strictly as they can; it is never run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import rota
from rota.client import (
    Client,
    Generation,
    OffsetToCommit,
    Shard,
    Term,
    TopicPartition,
    WorkItem,
)
from rota.client.events import Assigned

Places = tuple[TopicPartition, ...]


async def lead(term: Term) -> int:
    return term.fencing_token


async def index(shard: Shard) -> None:
    await shard.commit(await shard.position() + 1)


def started(added: Places, held: Places) -> None:
    print(len(added), len(held))


async def stopped(removed: Places) -> None:
    print(len(removed))


def assign(generation: Generation) -> Mapping[str, bytes]:
    return {member.member_id: member.metadata for member in generation.members}


def configured() -> Sequence[WorkItem]:
    return [WorkItem("sink", 0)]


async def main(url: str) -> None:
    async with rota.connect(url, client_id="program") as client:
        await administer(client)
        async with client.leader("writer", priority=2) as election:
            print(await election.run(lead), election.is_leader)
        async with client.lock("jobs") as grant:
            print(grant.fencing_token)
        permits = client.permits("scrapers", 4, wait_timeout=1.0)
        async with permits as permit:
            print(permit.number, permits.of)
        async with client.consumer("readers", ["documents"], on_assigned=started, on_revoked=stopped) as consumer:
            assigned: Assigned[Places] = await consumer.wait_assigned()
            await consumer.commit([OffsetToCommit("documents", 0, assigned.generation_id)])
            print(await consumer.committed(), consumer.assignment)
        async with client.worker_pool("indexers", {"documents": 4}, index, drain_timeout=5.0) as pool:
            await pool.run()
        async with client.connect_worker("connect", configured) as worker:
            print(worker.assignment)
        async with client.member("ranges", protocol_type="ranges", protocols={"even": b""}, assign=assign) as member:
            print(member.assignment, member.fencing_token)
        async for event in client.watch("readers", 0):
            print(event.kind, event.revision)


async def administer(client: Client) -> None:
    await client.put_topic("documents", 4)
    print([group.group_id for group in await client.list_groups()])
    print((await client.describe_group("readers")).state)


if __name__ == "__main__":
    asyncio.run(main("http://127.0.0.1:8080"))
