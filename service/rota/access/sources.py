"""The source of a call, as budgets and quotas count it."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

PREFIX_OF_IPV6: Final = 64
"""The network that one customer of a provider gets at least: each host in it has 2**64 addresses at will."""


@lru_cache(10_000)
def source_of(host: str) -> str:
    """An address as one source: IPv4 as it is, IPv6 by its network. A name that is no address stays."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, IPv6Address) or address.ipv4_mapped:
        return str(getattr(address, "ipv4_mapped", None) or address)
    return str(ip_network((int(address), PREFIX_OF_IPV6), strict=False))
