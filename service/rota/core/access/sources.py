"""The source of a call: its address past trusted proxies, and as budgets and quotas count it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

Network = IPv4Network | IPv6Network
PREFIX_OF_IPV6: Final = 64
"""The network that one customer of a provider gets at least: each host in it has 2**64 addresses at will."""

FORWARDED_FOR = "x-forwarded-for"
MAX_HOPS = 16
"""Addresses of a header that are read, from its end: they are read before the caller has shown an identity."""


@lru_cache(10_000)
def source_of(host: str) -> str:
    """An address as one source: IPv4 as it is, IPv6 by its network. A name that is no address stays."""
    address = _address(host)
    if not isinstance(address, IPv6Address):
        return host if address is None else str(address)
    return str(ip_network((int(address), PREFIX_OF_IPV6), strict=False))


def parse_networks(given: Any) -> Any:
    """`10.0.0.0/8,192.0.2.7`; ValueError for anything but addresses and networks."""
    return tuple(ip_network(part.strip()) for part in given.split(",") if part.strip()) if type(given) is str else given


@dataclass(frozen=True, slots=True)
class Proxies:
    """The proxies that the operator trusts. Headers from any other address are ignored."""

    networks: tuple[Network, ...] = ()

    def trust(self, host: str) -> bool:
        address = _address(host)
        return address is not None and any(address in network for network in self.networks)

    def client_of(self, host: str, forwarded_for: Sequence[str]) -> str:
        """The nearest address that is no proxy of ours; `forwarded_for` are the header's lines, in their order.

        Each proxy appends the address of its caller, so entries before the first untrusted one may be
        forged. The search also ends at an entry that is not an address. If `MAX_HOPS` entries are proxies of ours and
        more follow, the answer is `host`, the only address that a caller cannot forge.
        """
        hops = [hop for line in forwarded_for[-MAX_HOPS - 1 :] for hop in line.rsplit(",", MAX_HOPS)]
        nearest = host
        for _ in range(MAX_HOPS):
            if not hops or not self.trust(nearest):
                return nearest
            address = _address(_without_port(hops.pop().strip()))
            if address is None:
                return nearest
            nearest = str(address)
        return host if hops and self.trust(nearest) else nearest


NO_PROXIES = Proxies()


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """The address, an IPv4 one also where a socket for both kinds shows it as IPv6. Sockets of files have none."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def _without_port(hop: str) -> str:
    """Some proxies add it: `192.0.2.7:4711`, `[2001:db8::7]:4711`."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
