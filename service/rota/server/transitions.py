"""One log line for each transition of a group, with its reason."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from rota.replica.ports import JournalEvent

_STATES = {
    "rebalance_started": "PreparingRebalance",
    "generation_completed": "CompletingRebalance",
    "assignment_synced": "Stable",
    "group_emptied": "Empty",
    "group_deleted": "Dead",
}
"""The state that a group is in after a line of this kind."""
_UNDER_WAY = ("rebalance_started", "generation_completed")

_log = logging.getLogger(__name__)


class TransitionLog:
    """Told of the journal's lines once they are durable. Remembers why each rebalance that is under way began."""

    def __init__(self) -> None:
        self._reasons: dict[int, dict[tuple[str, str], str]] = {}

    def tell(self, shard_id: int, events: Iterable[JournalEvent]) -> None:
        for event in events:
            self._tell(shard_id, event)

    def _tell(self, shard_id: int, event: JournalEvent) -> None:
        state = _STATES.get(event.kind)
        if state is None:
            return
        reasons, group = self._reasons.setdefault(shard_id, {}), (event.namespace, event.group_id)
        began = reasons.pop(group, "")
        if event.kind in _UNDER_WAY:
            reasons[group] = event.reason or began
        _log.info(
            "group is %s",
            state,
            extra={
                "namespace": event.namespace,
                "group_id": event.group_id,
                "generation_id": event.generation_id,
                "state": state,
                "reason": event.reason or began,
                "shard_id": shard_id,
                "revision": event.seq,
            },
        )

    def forget(self, shard_id: int) -> None:
        """Another replica tells of this shard from now on."""
        self._reasons.pop(shard_id, None)
