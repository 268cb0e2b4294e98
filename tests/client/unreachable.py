"""Every kind of request, and the failure of one that gets no answer of a coordinator."""

from __future__ import annotations

import asyncio

import pytest

from rota.client import CoordinatorUnreachable
from rota.client.transports import Transport
from rota.protocol.messages import (
    CommitOffsets,
    DeleteGroup,
    DescribeGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetToCommit,
    Protocol,
    Request,
    SyncGroup,
)

DEADLINE_S = 60
BEAT = Heartbeat("default", "g", "m-1", 3)
REQUESTS: list[Request] = [
    JoinGroup("default", "g", "worker", (Protocol("p"),), 3_000, 6_000),
    SyncGroup("default", "g", "m-1", 3),
    BEAT,
    LeaveGroup("default", "g", (LeavingMember("m-1"),)),
    CommitOffsets("default", "g", 3, (OffsetToCommit("t", 0, 1),), "m-1"),
    DescribeGroup("default", "g"),
    DeleteGroup("default", "g"),
]


async def failure_of(transport: Transport, request: Request = BEAT) -> CoordinatorUnreachable:
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(CoordinatorUnreachable) as raised:
            await transport.send(request, timeout_ms=5_000)
    return raised.value
