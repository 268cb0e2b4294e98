"""Renewal of credentials that expired while a call was parked or a watch was open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from rota.client.errors import AccessDenied
from rota.client.transports.port import Answer, GroupEvent, Transport
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Request, parks_for_ms

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
