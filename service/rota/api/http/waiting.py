"""Parked calls and the callers behind them: one that hangs up takes its call along."""

from __future__ import annotations

import asyncio

from starlette.types import Receive

from rota.api.http.rendered import CallerGone
from rota.api.ports import ServedCoordinator
from rota.observability.metrics import Metrics
from rota.protocol.messages import Request, parks_for_ms
from rota.replica.ports import Answer


async def call_while_there(
    coordinator: ServedCoordinator, request: Request, receive: Receive, metrics: Metrics, operation: str
) -> Answer:
    """Call the coordinator; a call that may park is cancelled when its caller disconnects (`CallerGone`).

    The request's body must have been read, so that `receive` reports nothing but the disconnect.
    """
    if not parks_for_ms(request):
        return await coordinator.call(request)
    call = asyncio.ensure_future(coordinator.call(request))
    gone = asyncio.ensure_future(until_disconnect(receive))
    try:
        with metrics.parked(operation):
            await asyncio.wait((call, gone), return_when=asyncio.FIRST_COMPLETED)
        if call.done():
            return call.result()
        raise CallerGone
    finally:
        call.cancel()
        gone.cancel()
        await asyncio.gather(call, gone, return_exceptions=True)


async def until_disconnect(receive: Receive) -> None:
    """Return when the caller has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass
