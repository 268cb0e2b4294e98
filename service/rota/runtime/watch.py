"""Following one group's journal: what is stored first, then what happens, without a gap or a repeat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from rota.replica.ports import JournalEvent, ShardStore
from rota.runtime.host import ShardHost

PAGE = 500
BACKLOG = 10_000
"""A watcher that falls further behind than this is cut off, and resumes by revision."""


async def watch_group(
    host: ShardHost, store: ShardStore, namespace: str, group_id: str, after_revision: int | None
) -> AsyncIterator[JournalEvent]:
    """Events of the group with a revision above `after_revision`, or from now on where that is None.

    Ends when the shard is dropped or the watcher lags too far behind: call again with the last revision seen.
    Raises `LinesPruned` where `rota journal prune` was faster than the watcher.
    """
    queue: asyncio.Queue[JournalEvent | None] = asyncio.Queue()
    watchers = host.watchers.setdefault((namespace, group_id), set())
    watchers.add(queue)
    try:
        last = host.durable_seq
        if after_revision is not None:
            async for event in _stored(store, host.shard_id, after_revision, last, namespace, group_id):
                yield event
        while not host.dropped and queue.qsize() < BACKLOG:
            live = await queue.get()
            if live is None:
                return
            if live.seq > last:
                yield live
    finally:
        watchers.discard(queue)
        if not watchers:
            host.watchers.pop((namespace, group_id), None)


async def _stored(
    store: ShardStore, shard_id: int, after: int, last: int, namespace: str, group_id: str
) -> AsyncIterator[JournalEvent]:
    while True:
        page = await store.read_events(shard_id, after, PAGE, namespace=namespace, group_id=group_id)
        for event in page:
            if event.seq > last:
                return
            yield event
        if len(page) < PAGE:
            return
        after = page[-1].seq
