"""Following the journal lines of a group, and requests that wait for one.

`watch_group` reads what is stored, then what happens, from one owner. A `Follower` goes wherever the shard is, for
listeners that can miss some lines; those of `loop.Subscriptions` are called only about what this replica decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from rota.core.group.records import UNSETTLED
from rota.core.replica.ports import Answer, JournalEvent, ShardStore, StoreUnavailable
from rota.protocol.errors import ErrorCode, NotInJournal
from rota.protocol.messages import (
    GetLeader,
    GetTopic,
    LeaderReply,
    ListTopics,
    ListTopicsReply,
    Request,
    TopicReply,
    parks_for_ms,
)
from rota.server.runtime.clock import Clock
from rota.server.runtime.loop import Listener, ServedShard

if TYPE_CHECKING:
    from rota.server.runtime.coordinator import LocalCoordinator

logger = logging.getLogger(__name__)

PAGE = 500
LOOK_AGAIN_S = 0.25
"""While a shard moves. A member on a stream gets the same with its next heartbeat."""


async def watch_group(
    shard: ServedShard, store: ShardStore, namespace: str, group_id: str, after_revision: int | None
) -> AsyncIterator[JournalEvent]:
    """Events of the group with a revision above `after_revision`, or from now on if that is None.

    Ends when the shard is dropped or the watcher lags too far behind: call again with the last revision seen.
    Raises `LinesPruned` if `rota journal prune` was faster than the watcher, and `ReaderIsAhead` if the store
    went back to a state before `after_revision`.
    """
    queue: asyncio.Queue[JournalEvent | None] = asyncio.Queue()
    key = (namespace, group_id)
    shard.watchers.setdefault(key, set()).add(queue)
    try:
        last = shard.owned.durable_seq
        if after_revision is not None:
            # The store may have lines whose append has not been answered yet.
            last = max(last, after_revision)
            async for event in _stored(store, shard.owned.shard_id, after_revision, last, namespace, group_id):
                yield event
        while not shard.owned.is_dropped:
            live = await queue.get()
            if live is None:
                return
            if live.seq > last:
                yield live
    finally:
        _end_watch(shard, key, queue)


def _end_watch(shard: ServedShard, key: tuple[str, str], queue: asyncio.Queue[JournalEvent | None]) -> None:
    """The shard may have ended this watch, because it lags behind, and have others of the same group since."""
    watchers = shard.watchers.get(key, set())
    watchers.discard(queue)
    if not watchers:
        shard.watchers.pop(key, None)


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


Watch = Callable[[str, str, int | None], AsyncIterator[JournalEvent]]
"""The journal of a group, by namespace and id, after a revision, wherever its shard is."""


class Follower:
    """Follows one group: on the spot while its shard is here, over the owner's watch while it is not.

    Lines come in order and at most once. Some may be missing around a move, unless the owner's watch brings them; those
    that are pruned by then, or lost by a store that went back, are logged and skipped: members get the same with their
    next heartbeats.
    """

    def __init__(
        self, local: LocalCoordinator, watch: Watch, namespace: str, group_id: str, listener: Listener
    ) -> None:
        self._local = local
        self._watch = watch
        self._group = (namespace, group_id)
        self._listener = listener
        self._last: tuple[int, int] | None = None
        """Epoch and number of the last line. Where the store went back, lower numbers follow in a later epoch."""
        self._durable_seq: int | None = None
        """The last line that is durable for sure: those of a join phase may be lost with their owner."""
        # Begun at once, not when the task first runs: what happens from this moment on is reported.
        self._end = local.subscribe(*self._group, self._notify)
        self._task = asyncio.create_task(self._run())

    def end(self) -> asyncio.Task[None]:
        """Tell nothing more. The task that is returned ends soon, and is the caller's to await."""
        self._end()
        self._task.cancel()
        return self._task

    async def _run(self) -> None:
        while True:
            if self._local.is_here(*self._group):
                await self._local.until_moved(*self._group)
            else:
                await self._follow()
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _follow(self) -> None:
        try:
            watch = self._watch(*self._group, self._durable_seq)
            async with aclosing(watch) as events:  # type: ignore[type-var]
                async for event in events:
                    self._notify((event,))
        except StoreUnavailable:
            return
        except NotInJournal as refusal:
            # They were pruned, or the store has lost them.
            after = refusal.first_revision - 1 if refusal.last_revision is None else refusal.last_revision
            logger.warning("events of a followed group are gone; going on after them", extra={"after": after})
            self._last = (self._last[0] if self._last is not None else 0, after)
            self._durable_seq = after
        except Exception as error:
            # A peer's lines, or a listener that fails at them: members get the same with their next heartbeats.
            logger.error("events of a followed group were not received", exc_info=error)

    def _notify(self, events: Sequence[JournalEvent]) -> None:
        last = self._last
        new = [event for event in events if last is None or (event.epoch, event.seq) > last]
        if new:
            self._last = (new[-1].epoch, new[-1].seq)
            self._durable_seq = max((line.seq for line in new if line.kind not in UNSETTLED), default=self._durable_seq)
            self._listener(new)


# --- requests that wait for their answer to change ------------------------------------------------


async def ask_until_changed(
    request: GetLeader | GetTopic | ListTopics,
    ask: Callable[[Request], Awaitable[Answer]],
    shard: ServedShard | None,
    clock: Clock,
) -> Answer:
    """Ask again after each of the journal's lines that may matter, until the answer has changed or the wait is over."""
    # Journal lines of topics name no group.
    key = (request.namespace, request.group_id if isinstance(request, GetLeader) else "")
    until_ms = clock.monotonic_ms() + parks_for_ms(request)
    changes: asyncio.Queue[JournalEvent | None] = asyncio.Queue()
    if shard is not None:
        shard.watchers.setdefault(key, set()).add(changes)
    try:
        while True:
            answer = await ask(request)
            left_ms = until_ms - clock.monotonic_ms()
            if _has_changed(request, answer) or left_ms <= 0 or not await _next_change(changes, left_ms):
                return answer
            if shard is not None:
                # One change may concern thousands of callers: one of them is answered in each turn of the loop.
                async with shard.asking_again:
                    await asyncio.sleep(0)
    finally:
        if shard is not None:
            _end_watch(shard, key, changes)


def _has_changed(request: GetLeader | GetTopic | ListTopics, answer: Answer) -> bool:
    """A later generation has a leader, or topics are others than those that the caller knows; or waiting is useless."""
    match request, answer.reply:
        case GetLeader(), LeaderReply() as reply:
            if reply.error not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                return True
            return bool(reply.leader_id) and reply.generation_id > request.after_generation
        case GetTopic(), TopicReply() as reply:
            return reply.error not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC) or reply.version != request.version
        case ListTopics(), ListTopicsReply() as reply:
            return reply.error is not ErrorCode.NONE or reply.version != request.version
        case _:
            raise AssertionError(f"{answer.reply} does not answer {request}")


async def _next_change(changes: asyncio.Queue[JournalEvent | None], wait_ms: int) -> bool:
    """False when the time is over or the shard was dropped."""
    try:
        async with asyncio.timeout(wait_ms / 1000):
            return await changes.get() is not None
    except TimeoutError:
        return False
