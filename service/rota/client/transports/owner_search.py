"""Search for a group's owner: replicas return the owner's id and their own, which tells them apart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from rota.client.transports.owners import Group, Owner, OwnerOutOfReach


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
