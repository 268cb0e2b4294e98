"""What gRPC needs of the coordinator beyond what HTTP does. `LocalCoordinator` and `RoutedCoordinator` have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rota.api.ports import ServedCoordinator
from rota.protocol.messages import Heartbeat, HeartbeatMany
from rota.replica.ports import Answer, JournalEvent


class StreamedCoordinator(ServedCoordinator, Protocol):
    """A coordinator that also hears of many members at once, and pushes what their groups do."""

    def try_heartbeat(self, request: Heartbeat | HeartbeatMany) -> Answer | None:
        """Answer at once, without awaiting, or return None for `call` to do it."""

    def subscribe(self, namespace: str, group_id: str, listener: Callable[[JournalEvent], None]) -> Callable[[], None]:
        """Call `listener` for each journal line of the group, until the returned function is called."""
