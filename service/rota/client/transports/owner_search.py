"""Finding a group's owner: replicas return its id and their own, so that none is mistaken for another."""

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
    """What a replica tells of a group's owner, as far as a transport can use it."""

    replica_id: str
    """Empty while the group has no owner."""
    reported_by: str
    epoch: int
    address: str
    """What the owner advertises, if anything."""
    own_port: int
    """The owner's port that no other worker shares; 0 where there is none."""


Ask: TypeAlias = Callable[[Group, str], Awaitable[OwnerReport]]
"""Asks at an address; raises `OwnerOutOfReach` without an answer, or if the caller may not know."""


class OwnerSearch:
    """An owner is gone to at an address that the user listed, or at its own port beside one that workers share there;
    with `anywhere` also by what it advertises, if that has TLS where the addresses listed have it.
    """

    def __init__(self, ask: Ask, urls: Sequence[str], *, anywhere: bool) -> None:
        self._ask_at = ask
        self._urls = urls
        self._anywhere = anywhere
        self._replicas: dict[str, str] = {}
        """By URL, which replica was there last."""

    async def find(self, group: Group, at: str) -> Owner | None:
        """See `rota.client.transports.owners.Find`."""
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
            raise OwnerOutOfReach(f"none of the addresses is {report.replica_id}'s")
        return Owner(address, report.epoch)

    def _likely(self, report: OwnerReport) -> list[str]:
        """Where it was, and where it says that it is, as far as it may be gone there."""
        urls = [url for url, replica_id in self._replicas.items() if replica_id == report.replica_id]
        try:
            scheme, advertised = urlsplit(self._urls[0]).scheme, urlsplit(report.address)
        except ValueError:
            return urls  # The owner's address is none.
        url = advertised._replace(scheme=scheme).geturl()
        if url in self._urls or (self._anywhere and advertised.netloc):
            urls += [url] if advertised.scheme == scheme.removesuffix("+stream") else []
        return urls

    async def _there(self, group: Group, url: str, replica_id: str) -> str:
        """Where the owner is by way of a URL; empty if it is not behind that."""
        with suppress(OwnerOutOfReach):
            report = await self._ask(group, url)
            if report.replica_id == replica_id:
                return await self._by_way_of(group, url, report)
        return ""

    async def _by_way_of(self, group: Group, url: str, report: OwnerReport) -> str:
        """The same, once the answer there is known."""
        own = _with_port(url, report.own_port) if report.own_port else url
        if own == url:
            return url if report.reported_by == report.replica_id else ""
        with suppress(OwnerOutOfReach):
            if (await self._ask(group, own)).reported_by == report.replica_id:
                return own
        # A firewall in between, perhaps: the server behind the shared port is the owner's neighbour, if not itself.
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
