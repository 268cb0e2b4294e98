"""The shell of `rota.replica.assigning`: asks for topics, and computes assignments beside the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from rota.group.state import Timer
from rota.protocol.messages import Request
from rota.replica.assigning import AskAll, Assigning, Compute, Outcome, Step
from rota.replica.ports import Answer
from rota.runtime.clock import Clock
from rota.runtime.host import ShardHost

DROPPED = "the shard was dropped"
INLINE_SIZE = 2_000
"""Partitions and members up to which a thread would cost more than it spares the event loop."""

logger = logging.getLogger(__name__)


class ServerAssigner:
    """Run `run()` as a task that its creator awaits; `want` and `topics_changed` may be called at any time.

    `ask` reaches the shards of all replicas, `hosts` are those of this one.
    """

    def __init__(
        self, ask: Callable[[Request], Awaitable[Answer]], clock: Clock, hosts: Mapping[int, ShardHost]
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._hosts = hosts
        self.compute: Callable[[Compute], Awaitable[Outcome]] = compute
        """Replaced by the simulator, where computing may take long."""
        self._assigning = Assigning()
        self._wake = asyncio.Event()

    def want(self, host: ShardHost, timer: Timer) -> None:
        """See `Assigning.want`."""
        self._assigning.want(host.owned, timer, self._clock.monotonic_ms())
        self._wake.set()

    def topics_changed(self, namespaces: Iterable[str]) -> None:
        """See `Assigning.topics_changed`."""
        for namespace in namespaces:
            self._assigning.topics_changed(namespace, self._clock.monotonic_ms())
        self._wake.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                for do in self._assigning.next(self._clock.monotonic_ms()):
                    tasks.create_task(self._do(do))
                await self._pause()

    async def _pause(self) -> None:
        now_ms = self._clock.monotonic_ms()
        wake_ms = self._assigning.wake_ms(now_ms)
        try:
            async with asyncio.timeout(None if wake_ms is None else max(0, wake_ms - now_ms) / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _do(self, do: Step) -> None:
        match do:
            case AskAll(request):
                answer = await self._ask(request)
                self._assigning.listed(do, answer, self._clock.monotonic_ms())
            case Compute() if do.owned.is_dropped:  # Between its turn and this one.
                self._assigning.handed_in(do, DROPPED, taken=False)
            case Compute():
                outcome = await self.compute(do)
                self._assigning.handed_in(do, outcome, taken=self._hand_in(do, outcome))
        self._wake.set()

    def _hand_in(self, do: Compute, outcome: Outcome) -> bool:
        host = self._hosts.get(do.owned.shard_id)
        return host is not None and host.owned is do.owned and host.finish_job(do.job, outcome)


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
