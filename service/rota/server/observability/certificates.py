"""The validity of a server's certificates, read for each scrape, because they change while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_LABELS = ("use",)


@dataclass(frozen=True, slots=True)
class Validity:
    """The period in which all certificates of a chain are valid, in seconds since 1970."""

    from_s: float
    until_s: float


class CertificateCollector(Collector):
    """The validity of each chain, by its use: `clients` or `peers`."""

    _labelnames = _LABELS

    def __init__(self) -> None:
        self.shown: dict[str, Callable[[], Validity]] = {}

    def collect(self) -> Iterator[Metric]:
        begin = GaugeMetricFamily(
            "rota_certificate_not_before_timestamp_seconds",
            "Start of the validity of the certificate chain that is presented to clients or peers.",
            labels=_LABELS,
        )
        end = GaugeMetricFamily(
            "rota_certificate_not_after_timestamp_seconds",
            "Expiry of the certificate chain that is presented to clients or peers.",
            labels=_LABELS,
        )
        for use, look in self.shown.items():
            validity = look()
            begin.add_metric((use,), validity.from_s)
            end.add_metric((use,), validity.until_s)
        yield begin
        yield end
