"""The topics registered with the coordinator, as a consistent listing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rota.client.calls import Caller
from rota.core.types import TopicFacts
from rota.protocol.messages import ListTopics, ListTopicsReply

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
