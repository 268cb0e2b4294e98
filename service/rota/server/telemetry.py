"""The runtime's telemetry as metrics and log lines."""

# ruff: noqa: ARG002 — the runtime reports more than is used here.
from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from rota.core.replica.going_back import Setback
from rota.core.replica.ports import JournalEvent
from rota.server.observability.metrics import Metrics
from rota.server.runtime.telemetry import Telemetry

LAG_INTERVAL_SECONDS = 0.25

_log = logging.getLogger(__name__)
_transitions = logging.getLogger("rota.server.transitions")
"""The logger with one line for each transition of a group: users filter by its name."""
_STATES = {
    "rebalance_started": "PreparingRebalance",
    "generation_completed": "CompletingRebalance",
    "assignment_synced": "Stable",
    "group_emptied": "Empty",
    "group_deleted": "Dead",
}
"""The state of a group after a line of this kind."""
_COMMITTED = "offsets_committed"
"""The most frequent kind of lines. They cause no transitions."""
_UNDER_WAY = ("rebalance_started", "generation_completed")


class ServerTelemetry(Telemetry):
    """The telemetry of a server: metrics and log lines."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._transitions = TransitionLog()
        self._owned: set[int] = set()
        self._awaited_since_ms: dict[int, dict[tuple[str, str], int]] = {}
        """When a generation that has no assignment yet was complete, by shard and group."""

    def on_commit(self, lines: Mapping[int, Sequence[JournalEvent]], seconds: float) -> None:
        self._metrics.committed(sum(map(len, lines.values())), seconds)
        for shard_id, of_shard in lines.items():
            self._note_lines(shard_id, of_shard)

    def _note_lines(self, shard_id: int, events: Sequence[JournalEvent]) -> None:
        written = Counter([event.kind for event in events])
        for kind, count in written.items():
            self._metrics.events_written(kind, count)
        if len(written) == 1 and _COMMITTED in written:
            return
        self._transitions.notify(shard_id, events)
        awaited = self._awaited_since_ms.setdefault(shard_id, {})
        for event in events:
            group = (event.namespace, event.group_id)
            match event.kind:
                case "rebalance_started":
                    self._metrics.group_changed(event.payload["cause"])
                    # A generation was completed but got no assignment.
                    awaited.pop(group, None)
                case "generation_completed":
                    self._metrics.rebalance_phase_ended("join", event.at_ms - event.payload["started_at_ms"])
                    awaited[group] = event.at_ms
                case "assignment_synced" if event.payload["resync"]:
                    self._metrics.group_changed(event.payload["cause"])
                case "assignment_synced" if (since_ms := awaited.pop(group, None)) is not None:
                    self._metrics.rebalance_phase_ended("sync", event.at_ms - since_ms)
                case "member_fenced":
                    self._metrics.group_changed("takeover")
                case "group_emptied" | "group_deleted":
                    awaited.pop(group, None)
                case _:
                    pass

    def on_shard_loaded(self, shard_id: int, epoch: int, groups: int, seconds: float) -> None:
        # Forget again, because the shard's last events may have been reported after it was dropped.
        self._forget(shard_id)
        self._owned.add(shard_id)
        self._metrics.shards_owned(len(self._owned))
        self._metrics.shard_loaded(seconds)
        _log.debug("shard loaded", extra={"shard_id": shard_id, "epoch": epoch, "groups": groups, "seconds": seconds})

    def on_shard_dropped(self, shard_id: int, epoch: int, reason: str) -> None:
        self._owned.discard(shard_id)
        self._forget(shard_id)
        self._metrics.shards_owned(len(self._owned))
        self._metrics.shard_dropped(reason)

    def _forget(self, shard_id: int) -> None:
        self._awaited_since_ms.pop(shard_id, None)
        self._transitions.forget(shard_id)

    def on_forwarded(self, code: str) -> None:
        self._metrics.forwarded(code)

    def on_liveness_updates(self, members: int) -> None:
        self._metrics.liveness_updates(members)

    def on_liveness_failed(self, operation: str) -> None:
        self._metrics.liveness_failed(operation)

    def on_liveness_back(self) -> None:
        self._metrics.liveness_answered()

    def on_store_failed(self, operation: str) -> None:
        self._metrics.store_failed(operation)

    def on_store_copied(self, shards: int) -> None:
        self._metrics.store_copied(shards)

    def on_store_went_back(self, setbacks: Sequence[Setback]) -> None:
        self._metrics.store_went_back(len(setbacks))

    def on_expired(self, lateness_ms: int) -> None:
        self._metrics.member_expired(lateness_ms)

    def on_late_timer(self, lateness_ms: int) -> None:
        self._metrics.timer_late(lateness_ms / 1000)
        _log.warning(
            "event loop blocked; session deadlines are extended by the same time", extra={"lateness_ms": lateness_ms}
        )


class TransitionLog:
    """Logs the journal's lines after they are durable. Remembers why each current rebalance started."""

    def __init__(self) -> None:
        self._reasons: dict[int, dict[tuple[str, str], tuple[str, str]]] = {}
        """The sentence and the code by shard and group."""

    def notify(self, shard_id: int, events: Sequence[JournalEvent]) -> None:
        for event in events:
            self._notify(shard_id, event)

    def _notify(self, shard_id: int, event: JournalEvent) -> None:
        state = _STATES.get(event.kind)
        if state is None:
            return
        reasons, group = self._reasons.setdefault(shard_id, {}), (event.namespace, event.group_id)
        began, its_cause = reasons.pop(group, ("", ""))
        reason, cause = event.reason or began, event.payload.get("cause", its_cause)
        if event.kind in _UNDER_WAY:
            reasons[group] = reason, cause
        _transitions.info(
            "group is %s",
            state,
            extra={
                "namespace": event.namespace,
                "group_id": event.group_id,
                "generation_id": event.generation_id,
                "state": state,
                "reason": reason,
                "cause": cause,
                "shard_id": shard_id,
                "revision": event.seq,
            },
        )

    def forget(self, shard_id: int) -> None:
        """Forget a shard that another replica now owns."""
        self._reasons.pop(shard_id, None)


async def watch_loop_lag(metrics: Metrics) -> None:
    """Measure the lag of the event loop until cancelled."""
    while True:
        due = time.monotonic() + LAG_INTERVAL_SECONDS
        await asyncio.sleep(LAG_INTERVAL_SECONDS)
        metrics.loop_lagged(max(0.0, time.monotonic() - due))
