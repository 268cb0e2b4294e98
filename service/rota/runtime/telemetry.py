"""What the runtime tells about itself. The default listens to nothing; metrics and logs implement it."""

from __future__ import annotations

from collections.abc import Sequence

from rota.replica.going_back import Setback
from rota.replica.ports import JournalEvent


class Telemetry:
    """Called on the event loop, after the fact; must not block."""

    def on_events(self, shard_id: int, events: Sequence[JournalEvent]) -> None:
        """These journal lines are durable now."""

    def on_commit(self, shards: int, events: int, seconds: float) -> None:
        """One group commit took this long."""

    def on_shard_loaded(self, shard_id: int, epoch: int, groups: int, seconds: float) -> None:
        """This replica owns the shard from here on."""

    def on_shard_dropped(self, shard_id: int, epoch: int, reason: str) -> None:
        """This replica stopped answering for the shard."""

    def on_forwarded(self, code: str) -> None:
        """A peer answered a forwarded call with this error code; UNREACHABLE where it did not answer."""

    def on_liveness_updates(self, members: int) -> None:
        """So many members were published to the liveness store."""

    def on_liveness_failed(self, operation: str) -> None:
        """The liveness store did not answer: `publish`, `ask`, `record`, `read` or `ping`."""

    def on_liveness_back(self) -> None:
        """The liveness store answers again."""

    def on_store_failed(self, operation: str) -> None:
        """The store did not answer: `commit` or `leases`."""

    def on_store_copied(self, shards: int) -> None:
        """This store is a copy of another one, in which replicas hold so many of its shards."""

    def on_store_went_back(self, setbacks: Sequence[Setback]) -> None:
        """The store went back to an earlier state: these shards have lost lines."""

    def on_expired(self, lateness_ms: int) -> None:
        """A member was expired, at most so long after its deadline."""

    def on_late_timer(self, lateness_ms: int) -> None:
        """The event loop was held up: timers rang this late, and sessions were given the time back."""
