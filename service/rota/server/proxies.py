"""What a reverse proxy says of the connection that it took: believed of those that the operator names alone."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from rota.access.proxies import FORWARDED_FOR, Proxies

_PROTO_HEADER = b"x-forwarded-proto"
_FOR_HEADER = FORWARDED_FOR.encode()
_SCHEMES = frozenset({b"http", b"https"})


class TrustedProxies:
    """Gives requests the scheme by which their proxy was reached, and the address of the client that reached it.

    So cookies and links are made for that scheme, and members are known by their address. Any client can send the
    headers. They count for nothing from elsewhere; nor does a scheme that was sent twice.
    """

    def __init__(self, app: ASGIApp, proxies: Proxies) -> None:
        self._app = app
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if scope["type"] == "http" and client and self._proxies.trust(client[0]):
            scope = {**scope, **self._changes(client[0], scope["headers"])}
        await self._app(scope, receive, send)

    def _changes(self, proxy: str, headers: list[tuple[bytes, bytes]]) -> Scope:
        """What the proxy's headers change in a scope. A proxy names no client's port."""
        hops = [value.decode("latin-1") for name, value in headers if name == _FOR_HEADER]
        changes: Scope = {"client": (self._proxies.client_of(proxy, hops), 0)}
        schemes = [value.strip().lower() for name, value in headers if name == _PROTO_HEADER]
        if len(schemes) == 1 and schemes[0] in _SCHEMES:
            changes["scheme"] = schemes[0].decode()
        return changes
