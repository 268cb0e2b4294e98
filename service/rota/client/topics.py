"""A consumer's topics: its subscription, the listing and the watch of the registered topics, and missing topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from typing import TYPE_CHECKING, TypeAlias

from rota.core.types.topics import TopicRegex, names_matcher

if TYPE_CHECKING:
    import re


import asyncio
import logging
import random
from collections.abc import Callable, Collection

from rota.client.calls import Caller, retry_delay
from rota.client.errors import CoordinatorError
from rota.client.stats import CallStats
from rota.client.transports.port import Transport
from rota.core.membership.backoff import Backoff
from rota.core.types import TopicFacts
from rota.protocol.defaults import TOPICS_REFRESH_MS, TOPICS_WAIT_MS, WARN_AGAIN_MS
from rota.protocol.messages import ListTopics, ListTopicsReply

Topics: TypeAlias = "str | Sequence[str] | re.Pattern[str] | TopicRegex | Mapping[str, int]"
"""A name, several, a compiled regular expression that matches whole names (`re`, or `re2`, whose matching takes linear
time), or names with their partition counts.
"""


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Either names or a pattern, without the excluded names and prefixes (`audit-*`)."""

    names: tuple[str, ...]
    pattern: TopicRegex | None = None
    excepted: tuple[str, ...] = ()

    @classmethod
    def of(cls, topics: Topics, excepted: Sequence[str] = ()) -> TopicSelection:
        excepted = tuple(excepted)
        if not isinstance(topics, str | Iterable):
            return cls((), topics, excepted)
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        return cls(tuple(filterfalse(names_matcher(excepted), names)), excepted=excepted)

    def among(self, registered: Iterable[str]) -> tuple[str, ...]:
        """Return the selected topics of the registered ones. Names are selected whether or not they exist yet."""
        if self.pattern is None:
            return self.names
        matching = (topic for topic in registered if self.pattern.fullmatch(topic))
        return tuple(sorted(filterfalse(names_matcher(self.excepted), matching)))


_TRIES = 5
"""Maximum number of attempts if topics change between two pages."""


@dataclass(frozen=True, slots=True)
class TopicListing:
    """All topics of a namespace. `version` identifies them: no other listing has the same."""

    version: str
    topics: Mapping[str, TopicFacts]


class RegisteredTopics:
    """Lists the topics of a namespace. As a function it returns the facts of the given topics."""

    def __init__(self, caller: Caller, namespace: str) -> None:
        self._caller = caller
        self._namespace = namespace

    async def list(self) -> TopicListing:
        """Return all pages of one version. If topics change all the time, the last attempt has no version: it is soon
        outdated.
        """
        for _ in range(_TRIES):
            versions, topics = await self._read_pages()
            if len(versions) == 1:
                return TopicListing(versions.pop(), topics)
        return TopicListing("", topics)

    async def __call__(self, topics: Sequence[str]) -> dict[str, TopicFacts]:
        registered = (await self.list()).topics
        return {topic: registered[topic] for topic in topics if topic in registered}

    async def _read_pages(self) -> tuple[set[str], dict[str, TopicFacts]]:
        """Return the topics of all pages, and the versions of the pages."""
        found: dict[str, TopicFacts] = {}
        versions: set[str] = set()
        after: str | None = ""
        while after is not None:
            page = await self._caller.ask(ListTopics(self._namespace, after), ListTopicsReply)
            found |= {each.topic: TopicFacts(each.partitions, each.attributes) for each in page.topics}
            versions.add(page.version)
            after = page.next_after
        return versions, found


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


REPEAT_S = WARN_AGAIN_MS / 1000
_SHOWN = 10
"""Maximum number of names in a message."""


class MissingTopics:
    """The missing topics as one text. Logs a warning when they change, and once a minute while they are missing."""

    def __init__(self, group_id: str) -> None:
        self.text = ""
        """Empty if no topic is missing."""
        self._group_id = group_id
        self._names: tuple[str, ...] = ()
        self._warned_at_s = float("-inf")

    def update(self, wanted: Sequence[str], registered: Collection[str], now_s: float) -> None:
        """Compare the topics that this member names with the registered ones."""
        former, self._names = self._names, tuple(sorted(set(wanted) - set(registered)))
        self.text = _described(self._names, registered) if self._names else ""
        if former and not self._names:
            _log.info("group %s: %s", self._group_id, _are(former, "registered now"))
        elif self._names and (self._names != former or now_s >= self._warned_at_s + REPEAT_S):
            self._warned_at_s = now_s
            _log.warning("group %s: %s", self._group_id, self.text)


def _described(names: Sequence[str], registered: Collection[str]) -> str:
    it, they = ("it", "it is") if len(names) == 1 else ("them", "they are")
    known = _listed(sorted(registered)) if registered else "none"
    return (
        f"{_are(names, 'not registered')}: this member gets no partition of {it} until {they}; registered are: {known}"
    )


def _are(names: Sequence[str], state: str) -> str:
    quoted = _listed([repr(name) for name in names])
    return f"topic {quoted} is {state}" if len(names) == 1 else f"topics {quoted} are {state}"


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
