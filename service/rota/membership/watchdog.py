"""Progress apart from liveness: a member without progress releases its share (Kafka's max.poll)."""

from __future__ import annotations


class ProcessingWatchdog:
    """Notes progress and says when a share that is held without any is to be given up. Times are milliseconds."""

    def __init__(self, interval_ms: int | None) -> None:
        """Without an interval no share is ever given up."""
        self._interval_ms = interval_ms
        self._progressed_at_ms: int | None = None

    def progressed(self, now_ms: int) -> None:
        """Something was got done, or work has just been taken up."""
        self._progressed_at_ms = now_ms

    def rest(self) -> None:
        """Nothing is held, so that nothing is to be done."""
        self._progressed_at_ms = None

    @property
    def due_at_ms(self) -> int | None:
        """When patience is over unless there is progress before; None while nothing is watched."""
        if self._interval_ms is None or self._progressed_at_ms is None:
            return None
        return self._progressed_at_ms + self._interval_ms

    def is_over(self, now_ms: int) -> bool:
        return self.due_at_ms is not None and now_ms >= self.due_at_ms
