"""What a reverse proxy says of the connection that it took: believed of those that the operator names alone."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

Network = IPv4Network | IPv6Network

_HEADER = b"x-forwarded-proto"
_SCHEMES = frozenset({b"http", b"https"})


def parse_networks(given: Any) -> Any:
    """`10.0.0.0/8,192.0.2.7`; ValueError for what is no address and no network."""
    return tuple(ip_network(part.strip()) for part in given.split(",") if part.strip()) if type(given) is str else given


class TrustedProxies:
    """Gives requests the scheme by which their proxy was reached, so that cookies and links are made for that.

    Anybody can send the header. It counts for nothing from elsewhere, or where it was sent twice.
    """

    def __init__(self, app: ASGIApp, networks: Sequence[Network]) -> None:
        self._app = app
        self._networks = tuple(networks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._trusts(scope.get("client")):
            said = [value.strip().lower() for name, value in scope["headers"] if name == _HEADER]
            if len(said) == 1 and said[0] in _SCHEMES:
                scope = {**scope, "scheme": said[0].decode()}
        await self._app(scope, receive, send)

    def _trusts(self, client: tuple[str, int] | None) -> bool:
        address = _address(client[0]) if client else None
        return address is not None and any(address in network for network in self._networks)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """The address, an IPv4 one also where a socket for both kinds shows it as IPv6. Sockets of files have none."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
