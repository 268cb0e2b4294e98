"""What gRPC needs of the coordinator beyond what HTTP does. `LocalCoordinator` and `RoutedCoordinator` have it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rota.api.ports import ServedCoordinator
from rota.replica.ports import JournalEvent


class StreamedCoordinator(ServedCoordinator, Protocol):
    """A coordinator that also publishes the journal lines of groups, for the server to push to members."""

    def subscribe(
        self, namespace: str, group_id: str, listener: Callable[[Sequence[JournalEvent]], None]
    ) -> Callable[[], None]:
        """Call `listener` with the journal lines of the group, until the returned function is called."""
