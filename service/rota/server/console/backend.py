"""The only interface between pages and the service: every page and action calls it, and it asks the coordinator first.

So the guard of the coordinator also guards the console. Only two kinds of data are read from the store directly: a
group's journal, after the coordinator has described that group to the same caller, and data about no group.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.datastructures import QueryParams

from rota.core.access.sessions import SessionRecord
from rota.core.replica.ports import Answer, JournalEvent, ShardOwner
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
from rota.server.observability.generations import Event
from rota.server.ports import ServedCoordinator

MOST_GROUPS = 5_000
"""Maximum number of groups of a namespace; the list says if there are more."""
MOST_TOPICS = 10_000
_WINDOWS = (1_000, 4_000, 16_000, 64_000)
QUIET = frozenset({"offsets_committed", "session_stats"})
"""Lines that do not change a page of generations."""
_AT_ONCE = 16
_LONGEST_SEARCH = 249

Item = TypeVar("Item")


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


class ConsoleStore(Protocol):
    """The store. Every method raises `StoreUnavailable` when the store cannot answer. Only sessions are written."""

    async def namespaces(self) -> list[str]:
        """Return the namespaces that have groups or topics, ordered by name."""

    async def owners(self) -> Sequence[ShardOwner]:
        """Return every shard that was ever claimed, with its owner."""

    async def read_events(
        self, shard_id: int, after_seq: int, limit: int, *, namespace: str | None = None, group_id: str | None = None
    ) -> list[JournalEvent]:
        """Return journal lines with `seq > after_seq` in order, of one group if it is named."""

    async def add_session(self, record: SessionRecord, now_ms: int) -> None:
        """Store a session of the console. If its caller has too many, the oldest ends."""

    async def read_session(self, digest: str) -> SessionRecord | None:
        """Return the session with that digest; None if it has ended."""

    async def end_session(self, digest: str) -> None:
        """Remove the session with that digest, if it exists."""


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
        return (await self._answer(request)).reply

    async def _answer(self, request: Request) -> Answer:
        answer = await self._coordinator.call(request)
        if answer.reply.error is not ErrorCode.NONE:
            raise RejectedRequest(answer.reply.error, answer.reply.detail)
        return answer

    async def namespaces(self) -> list[str]:
        """Return all namespaces. Listing the groups of each shows which of them the caller may read."""
        return await self._store.namespaces()

    async def list_groups(self, namespace: str) -> Listing:
        groups, whole = await self._pages(ListGroups(namespace), "groups", MOST_GROUPS)
        return Listing(tuple(groups), whole)

    async def list_topics(self, namespace: str) -> list[ListedTopic]:
        topics, _ = await self._pages(ListTopics(namespace), "topics", MOST_TOPICS)
        return topics

    async def _pages(self, request: ListGroups | ListTopics, name: str, most: int) -> tuple[list[Any], bool]:
        """Return the items of the pages of a list up to a number, and whether these are all of them."""
        items: list[Any] = []
        after: str | None = ""
        while after is not None and len(items) < most:
            page = await self.call(msgspec.structs.replace(request, after=after))
            assert isinstance(page, ListReply | ListTopicsReply)
            items += getattr(page, name)
            after = page.next_after
        return items[:most], after is None

    async def describe(self, namespace: str, group_id: str) -> Described:
        answer = await self._answer(DescribeGroup(namespace, group_id))
        reply = answer.reply
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


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a page. `name` is the group or topic in its path."""

    backend: Backend
    parameters: QueryParams
    base_url: str
    """The console's URL as the browser sees it."""
    namespace: str
    name: str = ""

    @property
    def search(self) -> str:
        return self.parameters.get("q", "").strip()[:_LONGEST_SEARCH]

    def page(self, items: Sequence[Item], size: int) -> tuple[Sequence[Item], dict[str, int]]:
        """Return the items of the page that the URL names, and the values for links to others.

        An invalid number is the first page, a number too high the last.
        """
        text, pages = self.parameters.get("page", ""), max(1, -(-len(items) // size))
        page = min(pages, max(1, int(text))) if text.isdecimal() and len(text) < 7 else 1
        return items[(page - 1) * size : page * size], {"page": page, "pages": pages, "found": len(items)}
