"""Requests that wait for their answer to change: `GetLeader`, `GetTopic` and `ListTopics`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rota.protocol.errors import ErrorCode
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
from rota.replica.ports import Answer, JournalEvent
from rota.runtime.clock import Clock
from rota.runtime.loop import ServedShard


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
    finally:
        if shard is not None:
            watchers = shard.watchers.get(key, set())
            watchers.discard(changes)
            if not watchers:
                shard.watchers.pop(key, None)


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
