"""Which replica owns each group: a member's calls go straight there, past the one that would only forward them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote, urlsplit

import httpx

from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.messages import CommitOffsets, Heartbeat, JoinGroup, LeaveGroup, Request, SyncGroup
from rota.wire.documents import parse_document
from rota.wire.replies import Received
from rota.wire.routes import PREFIX

_OF_A_MEMBER = (JoinGroup, SyncGroup, Heartbeat, CommitOffsets, LeaveGroup)
_TIMEOUT_S = 5.0
_AGAIN_S = 1.0
"""After an owner was lost: the replicas take a moment to agree on the next one."""
_UNREACHABLE_S = 10.0
"""After an owner that cannot be reached from here, or must not be; and for who may join but not describe."""

Group: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Owner:
    """Where a group's owner is. Whoever owns it next answers with a higher epoch."""

    address: str
    epoch: int


class Owners:
    """Looks owners up in the background, so that no call waits for it; without one, any replica will do.

    An owner is gone to where it answers and the user listed its address; or, if `anywhere` is set, where what it
    advertises has the scheme of those listed.
    """

    def __init__(self, http: httpx.AsyncClient, base_urls: Sequence[str], *, anywhere: bool) -> None:
        self._http = http
        self._base_urls = base_urls
        self._anywhere = anywhere
        self._known: dict[Group, Owner] = {}
        self._not_before: dict[Group, float] = {}
        self._searches: dict[Group, asyncio.Task[None]] = {}

    def address_of(self, request: Request) -> str | None:
        """Where to send a request; None if that is not known, or all the same."""
        group = _group_of(request)
        known = self._known.get(group) if group else None
        return known.address if known else None

    def answered(self, request: Request, received: Received, by: str) -> None:
        """Learn from an answer, which came from the address `by`, that the owner is another, or who it is."""
        group = _group_of(request)
        if group is None or (len(self._base_urls) == 1 and not self._anywhere):
            return
        known = self._known.get(group)
        if known is not None and received.epoch not in (0, known.epoch):
            self.forget(request)
        elif known is None and received.reply.error is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
            self._look_up(group, by)

    def forget(self, request: Request) -> None:
        """It failed, or is not the owner any more."""
        group = _group_of(request)
        if group is not None and group in self._known:
            del self._known[group]
            self._not_before[group] = _now() + _AGAIN_S

    async def close(self) -> None:
        searches = list(self._searches.values())
        for search in searches:
            search.cancel()
        await asyncio.gather(*searches, return_exceptions=True)

    def _look_up(self, group: Group, at: str) -> None:
        if group in self._searches or _now() < self._not_before.get(group, 0.0):
            return
        task = self._searches[group] = asyncio.create_task(self._search(group, at), name=f"rota owner of {group[1]}")
        task.add_done_callback(lambda _: self._searches.pop(group, None))

    async def _search(self, group: Group, at: str) -> None:
        pause_s = _UNREACHABLE_S
        with suppress(httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                owner = await self._ask(group, at)
                if owner is None:
                    pause_s = _AGAIN_S
                elif await self._may_go_to(owner.address):
                    self._known[group] = owner
                    return
        self._not_before[group] = _now() + pause_s

    async def _ask(self, group: Group, at: str) -> Owner | None:
        """None where nobody owns it just now; `httpx.HTTPStatusError` where who asks may not know."""
        namespace, group_id = (quote(name, safe="") for name in group)
        response = await self._http.get(f"{at}{PREFIX.format(namespace=namespace)}/groups/{group_id}/coordinator")
        if response.is_client_error:
            response.raise_for_status()
        try:
            document = parse_document(response.content) if response.is_success else {}
        except RejectedRequest:
            return None
        address, epoch = document.get("address"), document.get("epoch")
        if not isinstance(address, str) or not address or type(epoch) is not int:
            return None
        return Owner(address.rstrip("/"), epoch)

    async def _may_go_to(self, address: str) -> bool:
        same_scheme = urlsplit(address).scheme == urlsplit(self._base_urls[0]).scheme
        if address not in self._base_urls and not (self._anywhere and same_scheme):
            return False
        return (await self._http.get(f"{address}/healthz")).is_success


def _group_of(request: Request) -> Group | None:
    """The group that a request of one of its members is about."""
    if isinstance(request, _OF_A_MEMBER) and not (isinstance(request, LeaveGroup) and request.by_admin):
        return request.namespace, request.group_id
    return None


def _now() -> float:
    return asyncio.get_running_loop().time()
