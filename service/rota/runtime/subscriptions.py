"""Being told of a group's journal lines on the spot, without a task or a queue for each who listens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from rota.replica.ports import JournalEvent

logger = logging.getLogger(__name__)

Listener = Callable[[JournalEvent], None]


class Subscriptions:
    """Listeners by group.

    They are called on the event loop once a line is durable, before the replies that it releases. They must be
    quick and must not raise. What happens while the group's shard is with somebody else, they are not told.
    """

    def __init__(self) -> None:
        self._listeners: dict[tuple[str, str], list[Listener]] = {}

    def add(self, namespace: str, group_id: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` for each line from now on, until the function that this returns is called."""
        key = (namespace, group_id)
        self._listeners.setdefault(key, []).append(listener)

        def end() -> None:
            listeners = self._listeners[key]
            listeners.remove(listener)
            if not listeners:
                del self._listeners[key]

        return end

    def tell(self, events: Iterable[JournalEvent]) -> None:
        if not self._listeners:
            return
        for event in events:
            for listener in tuple(self._listeners.get((event.namespace, event.group_id), ())):
                try:
                    listener(event)
                except Exception:
                    # A broken listener must not cost the shard its commit.
                    logger.exception("a listener failed", extra={"kind": event.kind, "group_id": event.group_id})
