"""Questions and commits for groups without members, asked of one replica, and as of which epoch it answers."""

from __future__ import annotations

import asyncio

from rota.client.errors import CoordinatorUnreachable
from rota.client.transports import HttpTransport
from rota.protocol.ids import shard_of
from rota.protocol.messages import CommitOffsets, DescribeGroup, OffsetToCommit, Request
from tests.faults.load import NAMESPACE, TOPIC
from tests.faults.record import Record, RecordingTransport

_GROUPS = [f"own-{number}" for number in range(40)]
"""So many that each shard has some."""


def groups_on(shards: list[int], shard_count: int) -> list[str]:
    return [group for group in _GROUPS if shard_of(NAMESPACE, group, shard_count) in shards]


async def ask(record: Record, url: str, requests: list[Request], *, timeout_ms: int = 20_000) -> list[tuple[int, int]]:
    """Send all at once, to this replica; the shard and the epoch of each answer, 0 where there was none."""
    transport = RecordingTransport(HttpTransport([url]), "somebody", record)
    try:
        return await asyncio.gather(*(_ask_one(transport, record, request, timeout_ms) for request in requests))
    finally:
        await transport.close()


async def _ask_one(transport: RecordingTransport, record: Record, request: Request, timeout_ms: int) -> tuple[int, int]:
    shard_id = shard_of(request.namespace, getattr(request, "group_id", ""), record.shard_count)
    try:
        return shard_id, (await transport.send(request, timeout_ms=timeout_ms)).epoch
    except CoordinatorUnreachable:
        return shard_id, 0


def a_commit(group_id: str, offset: int) -> CommitOffsets:
    return CommitOffsets(NAMESPACE, group_id, -1, (OffsetToCommit(TOPIC, 0, offset),))


def a_question(group_id: str) -> DescribeGroup:
    return DescribeGroup(NAMESPACE, group_id)
