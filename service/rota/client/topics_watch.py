"""Notification of changes of the registered topics by a parked call, instead of periodic listings."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from rota.client.calls import Caller, retry_delay
from rota.client.errors import CoordinatorError
from rota.client.stats import CallStats
from rota.client.transports.port import Transport
from rota.core.membership.backoff import Backoff
from rota.protocol.defaults import TOPICS_REFRESH_MS, TOPICS_WAIT_MS
from rota.protocol.messages import ListTopics, ListTopicsReply

LINGER_S = 0.05
"""Wait after a notification for further changes of the same moment."""
PAUSE_S = 0.5
"""Pause between two notifications: registering many topics one by one must not cause a rebalance for each."""
_AT_ONCE_S = 1.0
"""An answer without a change that arrives sooner was not parked: the server is stopping."""
_FIRST_PAUSE_MS = 200

_log = logging.getLogger(__name__)


class TopicsWatch:
    """Makes one parked call at a time, which waits until the topics differ from the last compared ones.

    The user of `follow` compares the group's assignment with a listing, and then notes the listing's version: a change
    between the parked call's answer and the listing is not missed, because the next call waits with that version.
    """

    def __init__(
        self,
        transport: Transport,
        namespace: str,
        *,
        longest_pause_ms: int = TOPICS_REFRESH_MS,
        jitter: Callable[[], float] = random.random,
        stats: CallStats | None = None,
    ) -> None:
        """`longest_pause_ms` is the maximum pause after repeated failures."""
        # The caller fails at the first error: its user falls back to polling.
        self._caller = Caller(transport, retry_timeout=0, jitter=jitter, stats=stats)
        self._namespace = namespace
        self._jitter = jitter
        self._backoff = Backoff(_FIRST_PAUSE_MS, longest_pause_ms)
        self._version = ""
        """The version of the last compared listing."""
        self._noted = asyncio.Event()
        self._not_before = 0.0
        """The earliest next call, also for the next run of `follow`: a change often ends one run and starts
        the next.
        """
        self.is_live = False
        """Whether changes are pushed while `follow` runs, so that no polling is needed."""

    def note(self, version: str) -> None:
        """Note that the assignment was compared with the topics of this version."""
        self._version = version
        self._noted.set()

    async def follow(self, on_news: Callable[[], None]) -> None:
        """Until cancelled, call `on_news` soon after each change; also initially, unless the noted version is current.

        After that call it waits for `note`.
        """
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(0.0, self._not_before - loop.time()))
            pause_s = await self._wait_once(on_news)
            self._not_before = loop.time() + pause_s

    async def _wait_once(self, on_news: Callable[[], None]) -> float:
        """Make one call; return the pause after it in seconds."""
        loop = asyncio.get_running_loop()
        asked_at, request = loop.time(), ListTopics(self._namespace, "", 1, self._version, TOPICS_WAIT_MS)
        try:
            version = (await self._caller.ask(request, ListTopicsReply)).version
        except CoordinatorError as error:
            _log.debug("the topics of %s cannot be watched: %s", self._namespace, error)
            self.is_live = False
            return max(self._pause_s(), retry_delay(error.code, error.retry_after))
        self.is_live = True
        if version != self._version:
            self._backoff.reset()
            self._not_before = loop.time() + PAUSE_S
            await asyncio.sleep(LINGER_S)
            self._noted.clear()
            on_news()
            await self._noted.wait()
            return max(0.0, self._not_before - loop.time())
        if loop.time() - asked_at < _AT_ONCE_S:
            return self._pause_s()
        self._backoff.reset()
        return 0.0

    def _pause_s(self) -> float:
        """The pause after a failure, never 0 whatever the jitter: calls without a pause would be a busy loop."""
        return (_FIRST_PAUSE_MS + self._backoff.next_ms(self._jitter())) / 1000
