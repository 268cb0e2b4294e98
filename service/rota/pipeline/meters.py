"""Figures of the pipeline itself: for Prometheus while it follows a journal, and as the table `pipeline_steps`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from rota.pipeline.files import TableWriter
from rota.pipeline.lake import Lake
from rota.pipeline.tables import GOLD, STEPS

INGEST, REFRESH, COMPACT = "ingest", "refresh", "compact"


class Metric(NamedTuple):
    """A metric's name, type, label (empty for none) and meaning."""

    name: str
    type_: str
    label: str
    meaning: str


LINES = Metric("rota_pipeline_lines_total", "counter", "", "Lines of the journal that were read.")
TIMES = Metric("rota_pipeline_steps_total", "counter", "step", "Steps (ingest, refresh, compact) that succeeded.")
SECONDS = Metric("rota_pipeline_step_seconds_total", "counter", "step", "Duration of these steps, added up.")
FAILURES = Metric("rota_pipeline_failures_total", "counter", "", "Steps that failed and are tried again.")
SUCCESS = Metric(
    "rota_pipeline_last_success_timestamp_seconds", "gauge", "step", "End of the last step of this kind that succeeded."
)
LAG = Metric(
    "rota_pipeline_lag_seconds", "gauge", "", "Age of the youngest line when it was read; 0 where there was none."
)
FILES = Metric("rota_pipeline_files", "gauge", "table", "Files of a table, as of the last refresh or compaction.")
METRICS = (LINES, TIMES, SECONDS, FAILURES, SUCCESS, LAG, FILES)


@dataclass(slots=True)
class _Sum:
    """The steps of a kind since the table got its last rows."""

    times: int = 0
    seconds: float = 0.0
    lines: int = 0
    lag_s: float = 0.0


@dataclass(slots=True)
class Meters:
    """Counts steps. One thread counts; others read `exposition`."""

    _values: dict[tuple[Metric, str], float] = field(default_factory=lambda: {(LINES, ""): 0.0, (FAILURES, ""): 0.0})
    _sums: dict[str, _Sum] = field(default_factory=dict)

    def step(self, name: str, at_s: float, seconds: float, *, lines: int = 0, lag_s: float = 0.0) -> None:
        """A step that succeeded at `at_s` (seconds since 1970)."""
        self._add(TIMES, name, 1)
        self._add(SECONDS, name, seconds)
        self._values[SUCCESS, name] = at_s
        if name == INGEST:
            self._add(LINES, "", lines)
            self._values[LAG, ""] = lag_s
        total = self._sums.setdefault(name, _Sum())
        total.times += 1
        total.seconds += seconds
        total.lines += lines
        total.lag_s = max(total.lag_s, lag_s)

    def failed(self) -> None:
        self._add(FAILURES, "", 1)

    def count_files(self, lake: Lake) -> None:
        for name, table in {"bronze/events": lake.bronze, **{name: lake.gold(name) for name in GOLD}}.items():
            self._values[FILES, name] = len(table.files())

    def write_rows(self, lake: Lake, at_s: float) -> None:
        """Add the sums to `pipeline_steps` if lines were read. Needs the lock of the tables."""
        if not any(each.lines for each in self._sums.values()):
            return
        bronze, at_us = len(lake.bronze.files()), int(at_s * 1_000_000)
        table = lake.gold(STEPS.name)
        batch = table.batch + 1
        writer = TableWriter(table.folder, {STEPS.name: STEPS.schema}, f"{batch:06}")
        for name, each in sorted(self._sums.items()):
            lag_s = each.lag_s if name == INGEST else None
            writer.add(STEPS.name, (at_us, name, each.times, each.seconds, each.lines, lag_s, bronze))
        table.commit(writer.close(), batch)
        self._sums.clear()

    def exposition(self) -> str:
        """All of it in Prometheus' text format."""
        values = dict(self._values)
        parts = []
        for metric in METRICS:
            parts += [f"# HELP {metric.name} {metric.meaning}", f"# TYPE {metric.name} {metric.type_}"]
            for label, value in sorted((label, value) for (each, label), value in values.items() if each == metric):
                labels = f'{{{metric.label}="{label}"}}' if metric.label else ""
                parts.append(f"{metric.name}{labels} {value!r}")
        return "\n".join(parts) + "\n"

    def _add(self, metric: Metric, label: str, value: float) -> None:
        self._values[metric, label] = self._values.get((metric, label), 0.0) + value


@contextmanager
def served(meters: Meters, host: str, port: int) -> Iterator[int]:
    """Answer GET /metrics at this address until the block ends; gives the port, which the system picks for 0."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            body = meters.exposition().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """A scrape is no news."""

    with ThreadingHTTPServer((host, port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
