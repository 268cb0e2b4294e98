"""Headers of reverse proxies about their connections, accepted only from proxies that the operator names."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from rota.core.access.sources import FORWARDED_FOR, Proxies

_PROTO_HEADER = b"x-forwarded-proto"
_FOR_HEADER = FORWARDED_FOR.encode()
_PREFIX_HEADER = b"x-forwarded-prefix"
_PREFIX = re.compile(rb"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")
_SCHEMES = frozenset({b"http", b"https"})


class TrustedProxies:
    """Sets the scheme and path of requests at their proxy, and the address of the client.

    So cookies and links use that scheme and path, and members have their own address. Any client can send the headers:
    they are ignored from other addresses, as is a scheme or prefix that was sent twice.
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
        """Return the changes of a scope by the proxy's headers. A proxy sends no client port."""
        hops = [value.decode("latin-1") for name, value in headers if name == _FOR_HEADER]
        changes: Scope = {"client": (self._proxies.client_of(proxy, hops), 0)}
        schemes = [value.strip().lower() for name, value in headers if name == _PROTO_HEADER]
        if len(schemes) == 1 and schemes[0] in _SCHEMES:
            changes["scheme"] = schemes[0].decode()
        prefixes = [value.rstrip(b"/") for name, value in headers if name == _PREFIX_HEADER]
        if len(prefixes) == 1 and _PREFIX.fullmatch(prefixes[0]):
            changes["root_path"] = prefixes[0].decode()
        return changes
