"""Which replica owns each group: a member's calls go straight there, past the one that would only forward them."""

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
from rota.wire.replies import Received

_OF_A_MEMBER = (JoinGroup, SyncGroup, Heartbeat, CommitOffsets, LeaveGroup)
_NOBODY = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
_TIMEOUT_S = REQUEST_TIMEOUT_MS / 1000
_AGAIN_S = 1.0
"""After an owner was lost: the replicas take a moment to agree on the next one."""
_UNREACHABLE_S = 10.0
"""After an owner that cannot be reached from here, or must not be; and for callers that may join but not describe."""
_BEHIND_ONE_ADDRESS_S = 60.0
"""A load balancer, say. Its target rarely changes."""

Group: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Owner:
    """The address of a group's owner. The next owner answers with a higher epoch."""

    address: str
    epoch: int


class OwnerOutOfReach(Exception):
    """There is one, but not at a reachable address; or the caller may not know."""


Find: TypeAlias = Callable[[Group, str], Awaitable[Owner | None]]
"""Asks at an address for a group's owner: None while it has none. Raises `OwnerOutOfReach`."""


class Owners:
    """Looks owners up in the background, so that no call waits for it; without one, any replica will do."""

    def __init__(self, find: Find, *, is_likely_found: bool) -> None:
        """One that is not, as there is but one address, is not looked for all the time."""
        self._find = find
        self._unreachable_s = _UNREACHABLE_S if is_likely_found else _BEHIND_ONE_ADDRESS_S
        self._known: Recent[Group, Owner] = Recent()
        self._not_before: Recent[Group, float] = Recent()
        self._searches: dict[Group, asyncio.Task[None]] = {}

    def address_of(self, request: Request) -> str | None:
        """Where to send a request; None if that is not known, or all the same."""
        group = _group_of(request)
        known = self._known.get(group) if group else None
        return known.address if known else None

    def answered(self, request: Request, received: Received, by: str) -> None:
        """Learn the owner, or that it changed, from an answer of the address `by`."""
        group = _group_of(request)
        if group is None:
            return
        known = self._known.get(group)
        if isinstance(request, LeaveGroup) and received.reply.error is ErrorCode.NONE:
            # The next call of a member that is still there learns it again.
            self._known.discard(group)
            self._not_before.discard(group)
        elif known is not None and received.epoch not in (0, known.epoch):
            self._lose(group)
        elif known is None and received.reply.error not in _NOBODY:
            self._look_up(group, by)

    def forget(self, request: Request, address: str) -> None:
        """A call failed there. An owner elsewhere that was found meanwhile is not forgotten."""
        group = _group_of(request)
        known = self._known.get(group) if group else None
        if group is not None and known is not None and known.address == address:
            self._lose(group)

    def forget_all_at(self, address: str) -> None:
        """The server there is about to stop."""
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
    """The group that a request of one of its members is about."""
    if isinstance(request, _OF_A_MEMBER) and not (isinstance(request, LeaveGroup) and request.by_admin):
        return request.namespace, request.group_id
    return None


def _now() -> float:
    return asyncio.get_running_loop().time()
