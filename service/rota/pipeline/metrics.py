"""The progress of `rota pipeline follow`, as metrics for Prometheus."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

if TYPE_CHECKING:
    from rota.pipeline.batches import Progress


class Metrics:
    """Counts batches, by Spark's own account of each."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._lines = Counter("rota_pipeline_lines", "Lines of the journal that were read.", registry=registry)
        self._seconds = Counter("rota_pipeline_batch_seconds", "Duration of the batches, added up.", registry=registry)
        self._behind = Gauge(
            "rota_pipeline_lines_behind", "Lines of the journal that the last batch left unread.", registry=registry
        )
        self._success = Gauge(
            "rota_pipeline_last_success_timestamp_seconds",
            "End of the last look at the journal that succeeded.",
            registry=registry,
        )

    def serve(self, host: str, port: int) -> None:
        """Answer GET /metrics at this address for as long as the process lives."""
        start_http_server(port, host, self.registry)

    def observe(self, done: Progress) -> None:
        """Take the progress of a batch, or of a look that found no line."""
        self._lines.inc(done.lines)
        self._seconds.inc(done.seconds)
        self._behind.set(max(0, done.latest.lines - done.end.lines))
        self._success.set(time.time())
