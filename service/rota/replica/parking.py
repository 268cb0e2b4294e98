"""How long a request may wait at its shard for its reply."""

from __future__ import annotations

from rota.group.shard import Shard
from rota.protocol.limits import MAX_WAIT_MS
from rota.protocol.messages import Heartbeat, JoinGroup, Request, SyncGroup

DEFAULT_WAIT_MS = 30_000


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
