"""Creation of the transport that a URL's scheme names, and renewal of its credentials."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from urllib.parse import SplitResult, parse_qsl

from rota.client.errors import AccessDenied
from rota.client.transports.http import HttpTransport
from rota.client.transports.port import Answer, GroupEvent, Transport
from rota.credentials import Credentials
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Request, parks_for_ms
from rota.protocol.wire.addresses import GRPC, HTTP, split_address


def transport_to(
    urls: Sequence[str],
    headers: Mapping[str, str] | None,
    credentials: Credentials | None = None,
    *,
    direct: bool = False,
) -> Transport:
    """Create a transport to these addresses; raise ValueError if they are invalid, or of several schemes.

    `direct`: also call owners at their advertised addresses.
    """
    transport = _transport_to(urls, headers, credentials, direct=direct)
    may_change = credentials is not None and (credentials.token_file or credentials.cert_file)
    return RenewingTransport(transport) if may_change else transport


def _transport_to(
    urls: Sequence[str], headers: Mapping[str, str] | None, credentials: Credentials | None, *, direct: bool
) -> Transport:
    parts = [split_address(url) for url in urls]
    schemes = {each.scheme for each in parts}
    if len(schemes) > 1:
        raise ValueError(f"addresses of one coordinator have one scheme, not {' and '.join(sorted(schemes))}")
    if schemes <= set(HTTP):
        return HttpTransport(urls, headers=headers, credentials=credentials, direct=direct)
    # Imported only if needed: gRPC is not in the base install.
    if schemes <= set(GRPC):
        from rota.client.transports.grpc import GrpcTransport

        return GrpcTransport(urls, headers=headers, credentials=credentials, direct=direct)
    from rota.client.transports.stream import StreamTransport

    leave_after_ms = _leave_after_ms(parts[0])
    return StreamTransport(urls, headers=headers, leave_after_ms=leave_after_ms, credentials=credentials, direct=direct)


def _leave_after_ms(parts: SplitResult) -> int | None:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    given = options.pop("leave_after_ms", None)
    if options or (given is not None and not (given.isascii() and given.isdigit())):
        raise ValueError(f"{parts.query!r} is not leave_after_ms=MILLISECONDS")
    return None if given is None else int(given)


LONG_S = 1.0
"""After this time, the file of the token or certificate may have changed since the server received it."""


class RenewingTransport:
    """A transport that reads its credentials again with each request.

    The server ends open calls when their credentials expire. A parked call is then sent once more, and a watch ends as
    when a server drains: the next request sends the current credentials of the files, and its answer counts.
    """

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def send(self, request: Request, *, timeout_ms: int) -> Answer:
        """Send a request: see `Transport.send`."""
        began = _now()
        answer = await self._inner.send(request, timeout_ms=timeout_ms)
        took_s = _now() - began
        left_ms = timeout_ms - int(took_s * 1000)
        was_open = parks_for_ms(request) > 0 and took_s >= LONG_S and left_ms > 0
        if answer.reply.error is not ErrorCode.UNAUTHENTICATED or not was_open:
            return answer
        return await self._inner.send(request, timeout_ms=left_ms)

    async def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[GroupEvent]:
        """Watch a group: see `Transport.watch`."""
        began = _now()
        try:
            async with aclosing(self._inner.watch(namespace, group_id, after_revision)) as events:  # type: ignore[type-var]
                async for event in events:
                    yield event
        except AccessDenied as error:
            if error.code is not ErrorCode.UNAUTHENTICATED or _now() - began < LONG_S:
                raise

    async def close(self) -> None:
        await self._inner.close()


def _now() -> float:
    return asyncio.get_running_loop().time()
