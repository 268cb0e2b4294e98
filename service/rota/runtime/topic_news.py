"""Changes of topics: waking callers that wait for one, and notifying the other replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import ListTopics, ListTopicsReply, parks_for_ms
from rota.replica.known_owners import KnownOwners
from rota.replica.ports import Answer, Replica

NotifyTopics = Callable[[Sequence[Replica], Sequence[str]], Awaitable[None]]
"""Notifies these replicas that topics of namespaces have changed. Best effort."""


class TopicNews:
    """Wakes waiting calls when a change is durable at this replica, or a peer reports one.

    That there is news is all that travels: who is woken lists the topics again. Where a peer's word is lost, a wait
    ends when its time is over, with what there is then.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._is_over = False

    def notify(self, namespace: str) -> None:
        """A topic was put or deleted."""
        for event in self._waiting.get(namespace, ()):
            event.set()

    def end_waits(self) -> None:
        """Answer all waiting calls, and accept none from now on: this replica stops."""
        self._is_over = True
        for namespace in self._waiting:
            self.notify(namespace)

    async def list_when_changed(self, request: ListTopics, ask: Callable[[ListTopics], Awaitable[Answer]]) -> Answer:
        """What `ask` answers, as soon as these are not the topics that the caller knows, or the wait is over."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        give_up_at = loop.time() + parks_for_ms(request) / 1000
        waiting = self._waiting.setdefault(request.namespace, set())
        waiting.add(woken)
        try:
            while True:
                # Before the topics are looked at: what happens meanwhile is not missed.
                woken.clear()
                answer = await ask(request)
                if self._is_over or _is_news(answer, request) or not await _is_set(woken, give_up_at):
                    return answer
        finally:
            waiting.discard(woken)
            if not waiting:
                self._waiting.pop(request.namespace, None)


class TopicNotifications:
    """Notifies the other replicas, one message at a time: changes meanwhile are in the next one."""

    def __init__(self, notify: NotifyTopics, known: KnownOwners) -> None:
        self._notify = notify
        self._known = known
        self._changed: set[str] = set()
        """Namespaces of which no message has been sent yet."""
        self._task: asyncio.Task[None] | None = None

    def send(self, namespaces: Iterable[str]) -> None:
        """Topics of these namespaces have changed here."""
        self._changed.update(namespaces)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send())

    async def flush(self) -> None:
        """Return once nothing is under way."""
        if self._task is not None:
            await self._task

    async def _send(self) -> None:
        while self._changed and (peers := self._known.peers):
            namespaces, self._changed = self._changed, set()
            await self._notify(peers, sorted(namespaces))


def _is_news(answer: Answer, request: ListTopics) -> bool:
    reply = answer.reply
    assert isinstance(reply, ListTopicsReply)
    return reply.error is not ErrorCode.NONE or reply.version != request.version


async def _is_set(event: asyncio.Event, until: float) -> bool:
    try:
        async with asyncio.timeout_at(until):
            return await event.wait()
    except TimeoutError:
        return False
