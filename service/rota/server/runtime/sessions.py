"""The shell of `rota.core.replica.shared_liveness`: the task that publishes, and the calls to the liveness store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from rota.core.group.sessions import MemberName
from rota.core.group.state import Timer
from rota.core.replica import shared_liveness as step
from rota.core.replica.owned_shard import PUBLISH_MS, OwnedShard
from rota.core.replica.ports import Answer, Liveness, SeenMembers
from rota.core.replica.shared_liveness import UNAVAILABLE, Found, SharedLiveness, Step, Steps
from rota.protocol.messages import Heartbeat, HeartbeatMany
from rota.server.runtime.clock import Clock
from rota.server.runtime.telemetry import Telemetry

logger = logging.getLogger(__name__)

WARN_MS = 10_000


class SharedSessions:
    """Run `run()` as a task that its owner awaits. Nothing here waits longer than the store's own short deadline."""

    def __init__(self, liveness: Liveness, clock: Clock, telemetry: Telemetry) -> None:
        self._liveness = liveness
        self._clock = clock
        self._telemetry = telemetry
        self._shared = SharedLiveness()
        self._warned_at_ms = -WARN_MS

    async def run(self, owned: Mapping[int, OwnedShard]) -> None:
        """Publish the heartbeats that these shards receive, until cancelled."""
        while True:
            await asyncio.sleep(PUBLISH_MS / 1000)
            await self._carry_out(self._shared.publish(list(owned.values()), self._clock.now()))

    async def read(self, shard_id: int) -> SeenMembers:
        """See `SharedLiveness.read`."""
        return await self._carry_out(self._shared.read(shard_id, self._clock.now()))

    async def record(self, shard_id: int, request: Heartbeat | HeartbeatMany) -> Answer | None:
        """See `SharedLiveness.record`."""
        return await self._carry_out(self._shared.record(shard_id, request))

    async def ask_others(self, timers: Sequence[tuple[int, Timer]]) -> Sequence[int | None]:
        """See `SharedLiveness.ask_others`."""
        return await self._carry_out(self._shared.ask_others(timers))

    def forget(self, shard_id: int, gone: Sequence[MemberName]) -> None:
        """See `SharedLiveness.forget`."""
        self._shared.forget(shard_id, gone)

    # --- steps ---------------------------------------------------------------------------------------

    async def _carry_out(self, steps: Steps[Found]) -> Found:
        try:
            do = next(steps)
            while True:
                answer = await self._ask_store(do)
                do = steps.send((answer, self._clock.now()))
        except StopIteration as end:
            found: Found = end.value
            return found

    async def _ask_store(self, do: Step) -> Any:
        try:
            return await self._do(do)
        except Exception as error:
            # The store is a help that members can do without, whatever it answers: no error of it ends this process.
            self._failed(_OPERATIONS[type(do)], error)
            return UNAVAILABLE

    async def _do(self, do: Step) -> Any:
        match do:
            case step.Ping():
                await self._liveness.ping()
                self._telemetry.on_liveness_back()
                logger.info("the liveness store is back")
                return None
            case step.Publish(updates):
                lost = await self._liveness.publish(updates)
                self._telemetry.on_liveness_updates(sum(len(some.seen_ms_ago) for some in updates))
                return lost
            case step.ReadShard(shard_id):
                return await self._liveness.read(shard_id)
            case step.LastSeen(members):
                return _one_each(members, await self._liveness.seen_ms_ago(members))
            case step.RecordHeartbeats(shard_id, names):
                return _one_each(names, await self._liveness.record(shard_id, names))

    def _failed(self, operation: str, error: Exception) -> None:
        now_ms = self._clock.monotonic_ms()
        self._telemetry.on_liveness_failed(operation)
        if now_ms >= self._warned_at_ms + WARN_MS:
            self._warned_at_ms = now_ms
            logger.warning(
                "the liveness store does not answer; this replica uses only the heartbeats that it receives itself",
                extra={"operation": operation, "error": str(error) or repr(error)},
            )


def _one_each(asked: Sequence[object], answers: Sequence[Found]) -> Sequence[Found]:
    if len(answers) != len(asked):
        raise ValueError(f"{len(answers)} answers about {len(asked)} members")
    return answers


_OPERATIONS: dict[type[Step], str] = {
    step.Ping: "ping",
    step.Publish: "publish",
    step.ReadShard: "read",
    step.LastSeen: "ask",
    step.RecordHeartbeats: "record",
}
"""What the metrics call them."""
