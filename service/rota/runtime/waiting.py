"""Questions that wait for their answer to change: who leads, and what a topic is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import GetLeader, GetTopic, LeaderReply, TopicReply
from rota.replica.ports import Answer, JournalEvent
from rota.runtime.clock import Clock
from rota.runtime.host import ShardHost


async def ask_until(
    ask: Callable[[], Awaitable[Answer]],
    enough: Callable[[Answer], bool],
    host: ShardHost | None,
    key: tuple[str, str],
    until_ms: int,
    clock: Clock,
) -> Answer:
    """Ask again after each of the journal's lines about `key`, until the answer is enough or the time is over."""
    changes: asyncio.Queue[JournalEvent | None] = asyncio.Queue()
    if host is not None:
        host.watchers.setdefault(key, set()).add(changes)
    try:
        while True:
            answer = await ask()
            left_ms = until_ms - clock.monotonic_ms()
            if enough(answer) or left_ms <= 0 or not await _next_change(changes, left_ms):
                return answer
    finally:
        if host is not None:
            watchers = host.watchers.get(key, set())
            watchers.discard(changes)
            if not watchers:
                host.watchers.pop(key, None)


def leads(request: GetLeader, answer: Answer) -> bool:
    """Somebody leads a later generation, or there is no use in waiting for that."""
    reply = answer.reply
    assert isinstance(reply, LeaderReply)
    unusable = reply.error not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
    return unusable or (bool(reply.leader_id) and reply.generation_id > request.after_generation)


def is_news(request: GetTopic, answer: Answer) -> bool:
    """The topic is not the one that the caller knows, or there is no use in waiting for that."""
    reply = answer.reply
    assert isinstance(reply, TopicReply)
    unusable = reply.error not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC)
    return unusable or reply.version != request.version


async def _next_change(changes: asyncio.Queue[JournalEvent | None], wait_ms: int) -> bool:
    """False when the time is over or the shard was dropped."""
    try:
        async with asyncio.timeout(wait_ms / 1000):
            return await changes.get() is not None
    except TimeoutError:
        return False
