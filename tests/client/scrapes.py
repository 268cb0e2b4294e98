"""The SDK's metrics as Prometheus reads them, by its own parser."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rota.adapters.prometheus import register
from rota.client.stats import HasStats


class Scrape:
    """What Prometheus would read of some clients now."""

    def __init__(self, *clients: HasStats) -> None:
        self.registry = CollectorRegistry()
        for client in clients:
            register(client, self.registry)

    def samples(self, metric: str, **labels: str) -> Iterator[float]:
        text = generate_latest(self.registry).decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == f"rota_client_{metric}" and labels.items() <= sample.labels.items():
                    yield sample.value

    def of(self, metric: str, **labels: str) -> float | None:
        """The sum of the samples with these labels; None where there is none."""
        found = list(self.samples(metric, **labels))
        return sum(found) if found else None
