"""The owner of each group: a member's calls go directly to it, without being forwarded by another replica."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from rota.client.transports.recent import Recent
from rota.protocol.defaults import REQUEST_TIMEOUT_MS
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import CommitOffsets, Heartbeat, JoinGroup, LeaveGroup, Request, SyncGroup
from rota.protocol.wire.replies import Received

_OF_A_MEMBER = (JoinGroup, SyncGroup, Heartbeat, CommitOffsets, LeaveGroup)
_NOBODY = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
_TIMEOUT_S = REQUEST_TIMEOUT_MS / 1000
_AGAIN_S = 1.0
"""Pause after an owner was lost: the replicas need a moment to elect the next one."""
_UNREACHABLE_S = 10.0
"""Pause after an owner that is unreachable or must not be called, and for callers that may join but not describe."""
_BEHIND_ONE_ADDRESS_S = 60.0
"""Pause behind one address, such as a load balancer, whose target rarely changes."""

Group: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Owner:
    """The address of a group's owner. The next owner answers with a higher epoch."""

    address: str
    epoch: int


class OwnerOutOfReach(Exception):
    """The owner has no reachable address, or the caller has no permission."""


Find: TypeAlias = Callable[[Group, str], Awaitable[Owner | None]]
"""Asks at an address for a group's owner; returns None if it has no owner. Raises `OwnerOutOfReach`."""


class Owners:
    """Looks owners up in the background, so that no call waits; without a known owner, any replica is called."""

    def __init__(self, find: Find, *, is_likely_found: bool) -> None:
        """`is_likely_found` is False with a single address: owners are then looked up rarely."""
        self._find = find
        self._unreachable_s = _UNREACHABLE_S if is_likely_found else _BEHIND_ONE_ADDRESS_S
        self._known: Recent[Group, Owner] = Recent()
        self._not_before: Recent[Group, float] = Recent()
        self._searches: dict[Group, asyncio.Task[None]] = {}

    def address_of(self, request: Request) -> str | None:
        """Return the address for a request; None if it is unknown or does not matter."""
        group = _group_of(request)
        known = self._known.get(group) if group else None
        return known.address if known else None

    def answered(self, request: Request, received: Received, by: str) -> None:
        """Update the owner from an answer of the address `by`."""
        group = _group_of(request)
        if group is None:
            return
        known = self._known.get(group)
        if isinstance(request, LeaveGroup) and received.reply.error is ErrorCode.NONE:
            # The next call of a remaining member looks it up again.
            self._known.discard(group)
            self._not_before.discard(group)
        elif known is not None and received.epoch not in (0, known.epoch):
            self._lose(group)
        elif known is None and received.reply.error not in _NOBODY:
            self._look_up(group, by)

    def forget(self, request: Request, address: str) -> None:
        """Forget an owner after a failed call, unless another owner was found meanwhile."""
        group = _group_of(request)
        known = self._known.get(group) if group else None
        if group is not None and known is not None and known.address == address:
            self._lose(group)

    def forget_all_at(self, address: str) -> None:
        """Forget all owners at an address: its server is about to stop."""
        for group in [group for group, owner in self._known.items() if owner.address == address]:
            self._lose(group)

    async def close(self) -> None:
        searches = list(self._searches.values())
        for search in searches:
            search.cancel()
        await asyncio.gather(*searches, return_exceptions=True)

    def _lose(self, group: Group) -> None:
        self._known.discard(group)
        self._not_before.put(group, _now() + _AGAIN_S)

    def _look_up(self, group: Group, at: str) -> None:
        if group in self._searches or _now() < (self._not_before.get(group) or 0.0):
            return
        task = self._searches[group] = asyncio.create_task(self._search(group, at), name=f"rota owner of {group[1]}")
        task.add_done_callback(lambda _: self._searches.pop(group, None))

    async def _search(self, group: Group, at: str) -> None:
        pause_s = self._unreachable_s
        with suppress(OwnerOutOfReach, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                owner = await self._find(group, at)
                if owner is not None:
                    self._known.put(group, owner)
                    self._not_before.discard(group)
                    return
                pause_s = _AGAIN_S
        self._not_before.put(group, _now() + pause_s)


def _group_of(request: Request) -> Group | None:
    """Return the group of a member's request."""
    if isinstance(request, _OF_A_MEMBER) and not (isinstance(request, LeaveGroup) and request.by_admin):
        return request.namespace, request.group_id
    return None


def _now() -> float:
    return asyncio.get_running_loop().time()
