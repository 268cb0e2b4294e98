"""The metrics of several clients of one process, added up for export."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol, TypeAlias

from rota.client.metrics import METRICS, Labels, Metric
from rota.client.stats import ClientStats, GroupBound, Sample

Values: TypeAlias = dict[Metric, dict[Labels, float]]
"""Numbers by their metric and the values of its labels."""


class HasStats(Protocol):
    """A client, or its sync twin."""

    @property
    def stats(self) -> ClientStats: ...


class Clients:
    """The clients that one registry or meter exports, added up: a counter never falls, even if a client ends."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        """Reentrant, because the garbage collector may close a client in any thread."""
        self._open: dict[ClientStats, None] = {}
        self._ended: Values = {}
        """The counters of removed clients."""
        self._groups, self._namespaces = GroupBound(), GroupBound()

    def add(self, client: HasStats) -> None:
        """Export this client until it is closed. A second call has no effect."""
        added = client.stats
        with self._lock:
            if added in self._open:
                return
            self._open[added] = None
        added.on_close(self._remove)

    def remove(self, client: HasStats) -> None:
        """Stop exporting this client. Its counters remain."""
        self._remove(client.stats)

    def _remove(self, removed: ClientStats) -> None:
        with self._lock:
            if removed in self._open:
                del self._open[removed]
                self._merge(self._ended, removed.counters())

    def collect(self) -> Values:
        """Return all metrics with their current values. Any thread may call it."""
        with self._lock:
            values = {metric: dict(self._ended.get(metric, {})) for metric in METRICS}
            for each in tuple(self._open):
                self._merge(values, each.counters())
                self._merge(values, each.gauges())
        return values

    def _merge(self, values: Values, samples: Iterable[Sample]) -> None:
        for metric, labels, value in samples:
            known, bounded = values.setdefault(metric, {}), self._bounded(labels)
            known[bounded] = metric.merge(known[bounded], float(value)) if bounded in known else float(value)

    def _bounded(self, labels: Labels) -> Labels:
        """Bound the labels: a program with a client per group has no more series than one with a single client."""
        if not labels:
            return labels
        namespace, group_id, *others = labels
        bound = self._groups if group_id else self._namespaces
        return (*bound.names_of(namespace, group_id), *others)
