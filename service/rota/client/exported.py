"""Several clients of one process as one, for whatever exports their metrics."""

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
    """The clients that one registry or meter shows, added up: a counter never falls, not even when a client ends."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        """Reentrant: the garbage collector may close a client, too, in any thread."""
        self._open: dict[ClientStats, None] = {}
        self._ended: Values = {}
        """The counters of the clients that were removed."""
        self._groups, self._namespaces = GroupBound(), GroupBound()

    def add(self, client: HasStats) -> None:
        """Show this client, until it is closed. Once is enough."""
        added = client.stats
        with self._lock:
            if added in self._open:
                return
            self._open[added] = None
        added.on_close(self._remove)

    def remove(self, client: HasStats) -> None:
        """Show this client no longer. Its counters stay where they are."""
        self._remove(client.stats)

    def _remove(self, removed: ClientStats) -> None:
        with self._lock:
            if removed in self._open:
                del self._open[removed]
                self._merge(self._ended, removed.counters())

    def collect(self) -> Values:
        """All metrics, with their values now. Any thread may call it."""
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
        """A program that opens a client for each of many groups has no more series than one with a single client."""
        if not labels:
            return labels
        namespace, group_id, *others = labels
        bound = self._groups if group_id else self._namespaces
        return (*bound.names_of(namespace, group_id), *others)
