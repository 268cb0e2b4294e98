"""The owner of each group: a member's calls go directly to it, without being forwarded by another replica.

A search finds it: replicas return the owner's id and their own, which tells them apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias, TypeVar
from urllib.parse import urlsplit

from rota.client.errors import CoordinatorUnreachable
from rota.client.transports.causes import ends_the_call, together
from rota.protocol.defaults import REQUEST_TIMEOUT_MS
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import CommitOffsets, Heartbeat, JoinGroup, LeaveGroup, Request, SyncGroup
from rota.protocol.wire.replies import Received

_OF_A_MEMBER = (JoinGroup, SyncGroup, Heartbeat, CommitOffsets, LeaveGroup)
_NOBODY = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
ELSEWHERE = frozenset({*_NOBODY, ErrorCode.NOT_COORDINATOR})
"""Errors of a replica that cannot serve the group now."""
_TIMEOUT_S = REQUEST_TIMEOUT_MS / 1000
_AGAIN_S = 1.0
"""Pause after an owner was lost: the replicas need a moment to elect the next one."""
_UNREACHABLE_S = 10.0
"""Pause after an owner that is unreachable or must not be called, and for callers that may join but not describe."""
_BEHIND_ONE_ADDRESS_S = 60.0
"""Pause behind one address, such as a load balancer, whose target rarely changes."""

MOST_GROUPS = 10_000
"""When more groups are known, all are forgotten, and found again."""

Group: TypeAlias = tuple[str, str]


Answered = TypeVar("Answered")


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
        self._known: dict[Group, Owner] = {}
        self._not_before: dict[Group, float] = {}
        """The earliest next search."""
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
            self._known.pop(group, None)
            self._not_before.pop(group, None)
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
        self._known.pop(group, None)
        self._not_before[group] = _now() + _AGAIN_S

    def _look_up(self, group: Group, at: str) -> None:
        if group in self._searches or _now() < self._not_before.get(group, 0.0):
            return
        if len(self._known) + len(self._not_before) >= MOST_GROUPS:  # A client that runs for months stays small.
            self._known, self._not_before = {}, {}
        task = self._searches[group] = asyncio.create_task(self._search(group, at), name=f"rota owner of {group[1]}")
        task.add_done_callback(lambda _: self._searches.pop(group, None))

    async def _search(self, group: Group, at: str) -> None:
        pause_s = self._unreachable_s
        with suppress(OwnerOutOfReach, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                owner = await self._find(group, at)
                if owner is not None:
                    self._known[group] = owner
                    self._not_before.pop(group, None)
                    return
                pause_s = _AGAIN_S
        self._not_before[group] = _now() + pause_s


def _group_of(request: Request) -> Group | None:
    """Return the group of a member's request."""
    if isinstance(request, _OF_A_MEMBER) and not (isinstance(request, LeaveGroup) and request.by_admin):
        return request.namespace, request.group_id
    return None


def _now() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class OwnerReport:
    """A replica's report of a group's owner, as far as transports use it."""

    replica_id: str
    """Empty while the group has no owner."""
    reported_by: str
    epoch: int
    address: str
    """The address that the owner advertises, if any."""
    own_port: int
    """The owner's port that no other worker shares; 0 without one."""


Ask: TypeAlias = Callable[[Group, str], Awaitable[OwnerReport]]
"""Asks at an address; raises `OwnerOutOfReach` without an answer, or if the caller has no permission."""


class OwnerSearch:
    """Finds an owner at an address that the user listed, or at its own port of such a host; with `anywhere` also at its
    advertised address, if that has TLS or the listed addresses have none.
    """

    def __init__(self, ask: Ask, urls: Sequence[str], *, anywhere: bool) -> None:
        self._ask_at = ask
        self._urls = urls
        self._anywhere = anywhere
        self._replicas: dict[str, str] = {}
        """The replica that last answered at each URL."""

    async def find(self, group: Group, at: str) -> Owner | None:
        """Find an owner: see `rota.client.transports.owners.Find`."""
        report = await self._ask(group, at)
        if not report.replica_id:
            return None
        address = await self._by_way_of(group, at, report)
        likely = self._likely(report)
        for url in likely:
            address = address or await self._there(group, url, report.replica_id)
        if not address:
            others = [url for url in self._urls if url not in (at, *likely)]
            found = await asyncio.gather(*(self._there(group, url, report.replica_id) for url in others))
            address = next(filter(None, found), "")
        if not address:
            raise OwnerOutOfReach(f"no address is {report.replica_id}'s")
        return Owner(address, report.epoch)

    def _likely(self, report: OwnerReport) -> list[str]:
        """Return the likely addresses: the last known one, and the advertised one if it may be used."""
        urls = [url for url, replica_id in self._replicas.items() if replica_id == report.replica_id]
        try:
            scheme, advertised = urlsplit(self._urls[0]).scheme, urlsplit(report.address)
        except ValueError:
            return urls  # The owner's address is invalid.
        url = advertised._replace(scheme=scheme).geturl()
        if url in self._urls or (self._anywhere and advertised.netloc):
            urls += [url] if advertised.scheme == scheme.removesuffix("+stream") else []
        return urls

    async def _there(self, group: Group, url: str, replica_id: str) -> str:
        """Return the owner's address behind a URL; empty if it is not behind that."""
        with suppress(OwnerOutOfReach):
            report = await self._ask(group, url)
            if report.replica_id == replica_id:
                return await self._by_way_of(group, url, report)
        return ""

    async def _by_way_of(self, group: Group, url: str, report: OwnerReport) -> str:
        """Return the owner's address from the answer of a URL."""
        own = _with_port(url, report.own_port) if report.own_port else url
        if own == url:
            return url if report.reported_by == report.replica_id else ""
        with suppress(OwnerOutOfReach):
            if (await self._ask(group, own)).reported_by == report.replica_id:
                return own
        # Perhaps a firewall blocks it: the server behind the shared port is the owner or on its host.
        return url

    async def _ask(self, group: Group, url: str) -> OwnerReport:
        self._replicas.pop(url, None)
        report = await self._ask_at(group, url)
        self._replicas[url] = report.reported_by
        return report


def _with_port(url: str, port: int) -> str:
    parts = urlsplit(url)
    host = parts.netloc.removesuffix(f":{parts.port}")
    return parts._replace(netloc=f"{host}:{port}").geturl()


class Addresses:
    """The listed addresses: calls use one until it fails, then the next. A member's calls go first to the known owner
    of its group.
    """

    def __init__(self, urls: Sequence[str], ask: Ask, *, direct: bool) -> None:
        """`ask` asks for an owner; `direct`: also call owners at other addresses than these."""
        if not urls or isinstance(urls, str):
            raise ValueError("a list of at least one URL is needed")
        self.urls = list(urls)
        self._current = 0
        search = OwnerSearch(ask, self.urls, anywhere=direct)
        self.owners = Owners(search.find, is_likely_found=direct or len(urls) > 1)

    @property
    def url(self) -> str:
        """The listed address that is used now."""
        return self.urls[self._current]

    async def first_reached(self, call: Callable[[str], Awaitable[Answered]], owner: str | None) -> Answered:
        """Make one call at the first address to which a connection opens: the owner's, then as listed.

        Once a request may have arrived the call fails, and the next call uses another address.
        """
        listed = self.urls[self._current :] + self.urls[: self._current]
        failures: list[CoordinatorUnreachable] = []
        for url in listed if owner is None else [owner, *(url for url in listed if url != owner)]:
            try:
                return await call(url)
            except CoordinatorUnreachable as failure:
                if ends_the_call(failure):
                    raise
                failures.append(failure)
        raise together(failures)

    def leave(self, url: str) -> None:
        """Send the next call to another address than this one."""
        if url == self.url:
            self._current = (self._current + 1) % len(self.urls)

    def avoid(self, request: Request, url: str) -> None:
        """Send the next call of this kind to another address."""
        self.owners.forget(request, url)
        self.leave(url)

    def answered(self, request: Request, received: Received, url: str) -> None:
        """Note an answer: a replica that cannot serve the group is avoided, and one that does not forward knows the
        owner.
        """
        if received.reply.error in ELSEWHERE:
            self.avoid(request, url)
        self.owners.answered(request, received, url)
