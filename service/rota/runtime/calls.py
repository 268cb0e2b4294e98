"""Requests that wait for their reply, by the number under which the core knows them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rota.group.shard import Shard
from rota.protocol.limits import MAX_WAIT_MS
from rota.protocol.messages import Heartbeat, JoinGroup, Request, SyncGroup
from rota.runtime.ports import Answer

DEFAULT_WAIT_MS = 30_000


@dataclass(slots=True, eq=False)
class Call:
    """One request under way. `timer` ends its parking; the future is done exactly once."""

    number: int
    request: Request
    future: asyncio.Future[Answer]
    timer: asyncio.TimerHandle | None = None

    def finish(self, answer: Answer) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if not self.future.done():
            self.future.set_result(answer)


def wait_ms(request: Request, shard: Shard) -> int:
    """How long this request may stay parked: what it asks for, within the server's bounds.

    A parked heartbeat counts as life only when it arrives and when it is answered, so it is answered
    within a third of its member's session.
    """
    match request:
        case JoinGroup() | SyncGroup():
            return min(DEFAULT_WAIT_MS if request.wait_ms is None else request.wait_ms, MAX_WAIT_MS)
        case Heartbeat():
            group = shard.groups.get((request.namespace, request.group_id))
            member = group.members.get(request.member_id) if group is not None else None
            third = member.image.session_timeout_ms // 3 if member is not None else 0
            return min(request.wait_ms or 0, MAX_WAIT_MS, third)
        case _:
            return MAX_WAIT_MS
