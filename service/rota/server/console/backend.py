"""The only interface between pages and the service: every page and action calls it, and it asks the coordinator first.

So the guard of the coordinator also guards the console. Only two kinds of data are read from the store directly: a
group's journal, after the coordinator has described that group to the same caller, and data about no group. For tokens
and quotas the page asks the guard first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace

from rota.core.replica.ports import JournalEvent, ShardOwner
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.ids import shard_of
from rota.protocol.messages import (
    DescribeGroup,
    DescribeReply,
    ListedGroup,
    ListedTopic,
    ListGroups,
    ListReply,
    ListTopics,
    ListTopicsReply,
    Reply,
    Request,
)
from rota.server.beginning import from_earliest
from rota.server.console.ports import ConsoleStore
from rota.server.observability.generations import Event
from rota.server.ports import ServedCoordinator

MOST_GROUPS = 5_000
"""Maximum number of groups of a namespace; the list says if there are more."""
MOST_TOPICS = 10_000
_WINDOWS = (1_000, 4_000, 16_000, 64_000)
QUIET = frozenset({"offsets_committed", "session_stats"})
"""Lines that do not change a page of generations."""
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Described:
    """A group's state at `revision` of its shard's journal."""

    namespace: str
    group: DescribeReply
    revision: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Groups of a namespace; `whole` unless there are more than a page reads."""

    groups: tuple[ListedGroup, ...]
    whole: bool = True


@dataclass(frozen=True, slots=True)
class History:
    """A group's latest lines of the journal, the oldest first."""

    events: list[Event]
    first_revision: int = 0
    """The first revision of the shard's journal, if requested older lines are pruned."""


class Backend:
    """Calls the coordinator for pages; a rejected call raises `RejectedRequest`."""

    def __init__(self, coordinator: ServedCoordinator, store: ConsoleStore) -> None:
        self._coordinator = coordinator
        self._store = store

    @property
    def shard_count(self) -> int:
        return self._coordinator.shard_count

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def ready(self) -> tuple[bool, str]:
        return self._coordinator.ready()

    async def call(self, request: Request) -> Reply:
        """Make any request of the protocol, and raise its error."""
        reply = (await self._coordinator.call(request)).reply
        if reply.error is not ErrorCode.NONE:
            raise RejectedRequest(reply.error, reply.detail)
        return reply

    async def namespaces(self) -> list[str]:
        """Return all namespaces. Listing the groups of each shows which of them the caller may read."""
        return await self._store.namespaces()

    async def list_groups(self, namespace: str) -> Listing:
        groups: list[ListedGroup] = []
        after: str | None = ""
        while after is not None and len(groups) < MOST_GROUPS:
            page = await self.call(ListGroups(namespace, after=after))
            assert isinstance(page, ListReply)
            groups += page.groups
            after = page.next_after
        return Listing(tuple(groups[:MOST_GROUPS]), whole=after is None)

    async def list_topics(self, namespace: str) -> list[ListedTopic]:
        topics: list[ListedTopic] = []
        after: str | None = ""
        while after is not None and len(topics) < MOST_TOPICS:
            page = await self.call(ListTopics(namespace, after=after))
            assert isinstance(page, ListTopicsReply)
            topics += page.topics
            after = page.next_after
        return topics

    async def describe(self, namespace: str, group_id: str) -> Described:
        answer = await self._coordinator.call(DescribeGroup(namespace, group_id))
        reply = answer.reply
        if reply.error is not ErrorCode.NONE:
            raise RejectedRequest(reply.error, reply.detail)
        assert isinstance(reply, DescribeReply)
        return Described(namespace, reply, answer.revision, answer.epoch)

    async def describe_each(self, namespace: str, group_ids: Sequence[str]) -> dict[str, Described]:
        """Describe several groups at once; deleted ones are omitted."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(group_id: str) -> Described | None:
            async with gate:
                try:
                    return await self.describe(namespace, group_id)
                except RejectedRequest:
                    return None

        found = await asyncio.gather(*(one(group_id) for group_id in group_ids))
        return {each.group.group_id: each for each in found if each is not None}

    async def history(
        self, described: Described, lines: int, *, before: int | None = None, but_for: frozenset[str] = frozenset()
    ) -> History:
        """Return the group's latest lines of the journal, at least `lines` if they exist, the oldest first.

        Only lines below the revision `before`, if given, and not of the kinds `but_for`. A shard's journal is only read
        forward, so increasing parts of its end are read, up to a bound.
        """
        last = described.revision if before is None else min(described.revision, before - 1)
        namespace, group_id = described.namespace, described.group.group_id
        shard_id = shard_of(namespace, group_id, self.shard_count)
        found, first_revision = list[JournalEvent](), 0
        for window in _WINDOWS:
            after = max(0, last - window)
            names = {"namespace": namespace, "group_id": group_id}
            read, first_revision = await self._lines_left(shard_id, after, window, **names)
            found = [event for event in read if event.seq <= last and event.kind not in but_for]
            if len(found) >= lines or not after or first_revision:
                break
        return History([_as_json(event) for event in found], first_revision)

    async def _lines_left(self, shard_id: int, after: int, limit: int, **names: str) -> tuple[list[JournalEvent], int]:
        """Return the lines after `after` that are not pruned, and the journal's first revision if some are."""

        async def read(after_revision: int) -> tuple[list[JournalEvent], int]:
            return await self._store.read_events(shard_id, after_revision, limit, **names), after_revision

        events, began_after = await from_earliest(read, after)
        return events, began_after + 1 if began_after > after else 0

    async def owners(self) -> Sequence[ShardOwner]:
        """Return every shard that was ever claimed. Leases of an embedded store are not renewed, so its replica's own
        state is used.
        """
        in_store = {owner.shard_id: owner for owner in await self._store.owners()}
        return list((in_store | {owner.shard_id: owner for owner in self._coordinator.owners()}).values())

    def owner_of(self, namespace: str, group_id: str) -> ShardOwner:
        return self._coordinator.locate(namespace, group_id)

    def changes(self, namespace: str, group_id: str) -> AsyncIterator[JournalEvent]:
        """Yield `changed` for each new line that changes data on a page."""
        return _changes(self._coordinator.watch(namespace, group_id, None))


async def _changes(events: AsyncIterator[JournalEvent]) -> AsyncIterator[JournalEvent]:
    async with aclosing(events):  # type: ignore[type-var]  # the coordinators' watches are generators
        async for event in events:
            if event.kind not in QUIET:
                yield replace(event, kind="changed", reason="", payload={})


def _as_json(event: JournalEvent) -> Event:
    return {**asdict(event), "revision": event.seq}
