"""Calls outside of a membership: retried while that may help, then raised as typed errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

from rota.client.errors import CoordinatorError, CoordinatorUnreachable, error_for
from rota.client.options import RETRY_TIMEOUT_S
from rota.client.stats import CallStats, Counts
from rota.client.transports.port import Answer, Transport
from rota.core.membership.backoff import Backoff
from rota.protocol.defaults import CALL_BACKOFF_CAP_MS, CALL_BACKOFF_FIRST_MS, REQUEST_TIMEOUT_MS
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Reply, Request, parks_for_ms
from rota.protocol.wire.status import STATUS

AnyReply = TypeVar("AnyReply", bound=Reply)

_BUSY = frozenset({ErrorCode.THROTTLED, ErrorCode.GROUP_MAX_SIZE_REACHED})


def retry_delay(code: ErrorCode, retry_after: float) -> float:
    """Return the pause before a retry in seconds: `Retry-After` if the coordinator is overloaded.

    An unavailable coordinator also sends it, in whole seconds; but another replica may take over within milliseconds.
    """
    return (retry_after or STATUS[code].retry_after_s or 0) if code in _BUSY else 0


class Caller:
    """Sends requests that may safely arrive twice, and retries them for `retry_timeout` seconds."""

    def __init__(
        self,
        transport: Transport,
        *,
        retry_timeout: float = RETRY_TIMEOUT_S,
        jitter: Callable[[], float] = random.random,
        stats: CallStats | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """`stats`, if given, counts the calls; `check` raises before an attempt that must not be made."""
        self._transport = transport
        self._stats = stats or CallStats(Counts())
        self._retry_timeout = retry_timeout
        self._jitter = jitter
        self.check: Callable[[], None] = check or (lambda: None)

    async def ask(self, request: Request, reply_type: type[AnyReply]) -> AnyReply:
        """Return the reply to `request`. Raises its error, or `CoordinatorUnreachable` if no answer arrived.

        The time for which a call may park does not count as time for retries.

        If another program answers with a lasting error, such as a 404, the call is retried once and the error then
        raised.
        """
        loop = asyncio.get_running_loop()
        parks_ms = parks_for_ms(request) if self._retry_timeout else 0  # A caller without retries does not pause.
        give_up_at = loop.time() + self._retry_timeout + parks_ms / 1000
        backoff = Backoff(CALL_BACKOFF_FIRST_MS, CALL_BACKOFF_CAP_MS)
        lasting = 0
        while True:
            self.check()
            try:
                return await self._ask_once(request, reply_type)
            except CoordinatorError as error:
                pause_s = max(backoff.next_ms(self._jitter()) / 1000, retry_delay(error.code, error.retry_after))
                lasting += isinstance(error, CoordinatorUnreachable) and error.is_lasting
                if not error.retriable or lasting > 1 or loop.time() + pause_s >= give_up_at:
                    raise
            await asyncio.sleep(pause_s)
            self._stats.repeated(request)

    async def _ask_once(self, request: Request, reply_type: type[AnyReply]) -> AnyReply:
        answer = await self._send(request)
        if answer.reply.error is not ErrorCode.NONE:
            raise error_for(answer.reply.error, answer.reply.detail, answer.retry_after_ms)
        if not isinstance(answer.reply, reply_type):
            raise CoordinatorUnreachable(f"the answer to {type(request).__name__} has another type")
        return answer.reply

    async def _send(self, request: Request) -> Answer:
        try:
            answer = await self._transport.send(request, timeout_ms=REQUEST_TIMEOUT_MS + parks_for_ms(request))
        except CoordinatorUnreachable as error:
            self._stats.ended(request, error)
            raise
        except asyncio.CancelledError:
            self._stats.cancelled(request)
            raise
        self._stats.ended(request, answer)
        return answer
