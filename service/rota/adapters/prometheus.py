"""The SDK's metrics in a registry of prometheus-client, beside those of the program.

    async with rota.connect("http://localhost:8080") as client:
        rota.adapters.prometheus.register(client)

Clients of one registry are added up. The numbers are read at each scrape, in the thread of the scrape.
"""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakKeyDictionary

from rota.client.metrics import METRICS, Clients, HasStats, Metric, MetricType

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
    """Show the metrics of `client`, or of its sync twin, in `registry` until the client is closed.

    Counters of a client that has ended stay, so that none ever falls; its gauges disappear.
    """
    collector = _COLLECTORS.get(registry)
    if collector is None:
        collector = _COLLECTORS.setdefault(registry, _ClientCollector())
        registry.register(collector)
    collector.clients.add(client)


def unregister(client: HasStats, registry: CollectorRegistry = REGISTRY) -> None:
    """Show the metrics of `client` in `registry` no longer, while it stays open."""
    if (collector := _COLLECTORS.get(registry)) is not None:
        collector.clients.remove(client)


class _ClientCollector(Collector):
    def __init__(self) -> None:
        self.clients = Clients()

    def describe(self) -> Iterator[_Family]:
        return map(_family, METRICS)

    def collect(self) -> Iterator[_Family]:
        for metric, samples in self.clients.collect():
            family = _family(metric)
            for labels, value in samples.items():
                family.add_metric(labels, value)
            yield family


_COLLECTORS: WeakKeyDictionary[CollectorRegistry, _ClientCollector] = WeakKeyDictionary()


def _family(metric: Metric) -> _Family:
    kind = CounterMetricFamily if metric.type is MetricType.COUNTER else GaugeMetricFamily
    return kind(metric.name, metric.meaning, labels=metric.labels)
