"""Notices that the registered topics have changed by a parked call, instead of listing them now and then."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from rota.client.calls import Caller, retry_delay
from rota.client.errors import CoordinatorError
from rota.client.stats import CallStats
from rota.client.transports.port import Transport
from rota.membership.backoff import Backoff
from rota.protocol.defaults import TOPICS_REFRESH_MS, TOPICS_WAIT_MS
from rota.protocol.messages import ListTopics, ListTopicsReply

LINGER_S = 0.05
"""After word of a change, for others of the same moment."""
PAUSE_S = 0.5
"""Between two changes: registering many topics one by one must not cause a rebalance for each."""
_AT_ONCE_S = 1.0
"""An answer without a change that arrives sooner was not parked: the server stops."""
_FIRST_PAUSE_MS = 200

_log = logging.getLogger(__name__)


class TopicsWatch:
    """One parked call at a time, that waits until the topics are others than those that were compared last.

    Whoever follows compares the group's assignment with a listing, and then notes that listing's version: what changes
    between an answer to the parked call and the listing is not missed, because the next call waits with that version.
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
        """`longest_pause_ms`: where the watch fails again and again."""
        # It fails at the first error: its user falls back to polling.
        self._caller = Caller(transport, retry_timeout=0, jitter=jitter, stats=stats)
        self._namespace = namespace
        self._jitter = jitter
        self._backoff = Backoff(_FIRST_PAUSE_MS, longest_pause_ms)
        self._version = ""
        """Of the listing that was compared last."""
        self._noted = asyncio.Event()
        self._not_before = 0.0
        """Also for the next run of `follow`: a change is often what ends the one and begins the other."""
        self.is_live = False
        """Whether changes are pushed while `follow` runs: no polling is needed then."""

    def note(self, version: str) -> None:
        """The assignment was compared with the topics of this version."""
        self._version = version
        self._noted.set()

    async def follow(self, on_news: Callable[[], None]) -> None:
        """Until it is cancelled, call `on_news` soon after each change; and at first, unless all is as it was noted.

        After that call it waits for `note`.
        """
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(0.0, self._not_before - loop.time()))
            pause_s = await self._wait_once(on_news)
            self._not_before = loop.time() + pause_s

    async def _wait_once(self, on_news: Callable[[], None]) -> float:
        """One call, and how many seconds to leave the coordinator alone after it."""
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
        """Never nothing, however the dice fall: calls without an end in between are a busy loop."""
        return (_FIRST_PAUSE_MS + self._backoff.next_ms(self._jitter())) / 1000
