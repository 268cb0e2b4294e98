"""Assignments by the server, computed beside the event loop: the shell of `rota.core.replica.assigning`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from rota.core.replica.assigning import AskTopics, Compute, Outcome, Step
from rota.core.replica.known_owners import KnownOwners
from rota.core.replica.ports import Answer, Replica
from rota.protocol.messages import Request
from rota.server.runtime.loop import ShardLoop

DROPPED = "the shard was dropped"
INLINE_SIZE = 2_000
"""Partitions and members up to which a thread would cost more than it spares the event loop."""

NotifyTopics = Callable[[Sequence[Replica], Sequence[str]], Awaitable[None]]
"""Notifies these replicas that topics of namespaces have changed. Best effort."""

logger = logging.getLogger(__name__)


class ServerAssigner:
    """Run `run()` as a task that its creator awaits. `ask` reaches the owner of a namespace's topics."""

    def __init__(self, ask: Callable[[Request], Awaitable[Answer]], loop: ShardLoop) -> None:
        self._ask = ask
        self._loop = loop
        self._clock = loop.clock
        self._assigning = loop.assigning
        self.compute: Callable[[Compute], Awaitable[Outcome]] = compute
        """Replaced by the simulator, where computing may take long."""

    def topics_changed(self, namespaces: Iterable[str]) -> None:
        """See `Assigning.topics_changed`."""
        for namespace in namespaces:
            self._assigning.topics_changed(namespace, self._clock.monotonic_ms())
        self._loop.assigning_changed.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._loop.assigning_changed.clear()
                for do in self._assigning.next(self._clock.monotonic_ms()):
                    tasks.create_task(self._do(do))
                await self._pause()

    async def _pause(self) -> None:
        now_ms = self._clock.monotonic_ms()
        wake_ms = self._assigning.wake_ms(now_ms)
        try:
            async with asyncio.timeout(None if wake_ms is None else max(0, wake_ms - now_ms) / 1000):
                await self._loop.assigning_changed.wait()
        except TimeoutError:
            pass

    async def _do(self, do: Step) -> None:
        match do:
            case AskTopics(request):
                answer = await self._ask(request)
                self._assigning.listed(do, answer, self._clock.monotonic_ms())
            case Compute(owned=owned) if owned.is_dropped:  # Between its turn and this one.
                self._assigning.handed_in(do, DROPPED, taken=False)
            case Compute(owned=owned):
                outcome = await self.compute(do)
                taken = self._loop.finish_job(owned, do.job, outcome)
                self._assigning.handed_in(do, outcome, taken=taken)
        self._loop.assigning_changed.set()


class TopicNotifications:
    """Notifies the other replicas, one message at a time: changes meanwhile are in the next one.

    The message has the names of namespaces alone: a replica that assigns groups there lists the topics again.
    """

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


async def compute(do: Compute) -> Outcome:
    """The assignments, or why there are none: a strategy that breaks must not end the task of all groups."""
    job = do.job
    size = sum(facts.partitions for facts in do.topics.values()) + len(job.generation.members)
    try:
        return do.assign() if size <= INLINE_SIZE else await asyncio.to_thread(do.assign)
    except Exception as error:
        logger.exception(
            "an assignment strategy raised an exception", extra={"group_id": job.group_id, "namespace": job.namespace}
        )
        return f"{type(error).__name__}: {error}"
