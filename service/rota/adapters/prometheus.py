"""The SDK's metrics in a registry of prometheus-client, next to those of the program.

    async with rota.connect("http://localhost:8080") as client:
        rota.adapters.prometheus.register(client)

The numbers of all clients of one registry are added. They are read at each scrape, in the scrape's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from weakref import WeakKeyDictionary

from rota.client.metrics import METRICS, Metric, MetricType
from rota.client.stats import Clients, HasStats

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        f"the SDK's metrics for Prometheus need prometheus-client ({error}): pip install 'rota[client-metrics]'"
    ) from error

_Family = CounterMetricFamily | GaugeMetricFamily


def register(client: HasStats, registry: CollectorRegistry = REGISTRY) -> None:
    """Export the metrics of `client`, or of its sync twin, to `registry` until the client is closed.

    Counters of a closed client remain, so that no counter falls; its gauges disappear.

    Raises:
        ValueError: The registry has metrics of another collector under these names.
    """
    _collector_of(registry).clients.add(client)


def unregister(client: HasStats, registry: CollectorRegistry = REGISTRY) -> None:
    """Stop exporting the metrics of `client` to `registry` while it stays open."""
    with _LOCK:
        collector = _COLLECTORS.get(registry)
    if collector is not None:
        collector.clients.remove(client)


class _ClientCollector(Collector):
    def __init__(self) -> None:
        self.clients = Clients()

    def describe(self) -> Iterator[_Family]:
        return map(_family, METRICS)

    def collect(self) -> Iterator[_Family]:
        for metric, samples in self.clients.collect().items():
            family = _family(metric)
            for labels, value in samples.items():
                family.add_metric(labels, value)
            yield family


_LOCK = threading.Lock()
_COLLECTORS: WeakKeyDictionary[CollectorRegistry, _ClientCollector] = WeakKeyDictionary()


def _collector_of(registry: CollectorRegistry) -> _ClientCollector:
    with _LOCK:
        collector = _COLLECTORS.get(registry)
        if collector is None:
            collector = _ClientCollector()
            registry.register(collector)
            _COLLECTORS[registry] = collector
        return collector


def _family(metric: Metric) -> _Family:
    kind = CounterMetricFamily if metric.type is MetricType.COUNTER else GaugeMetricFamily
    return kind(metric.name, metric.meaning, labels=metric.labels)
