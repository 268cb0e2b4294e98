"""Metrics that are computed for each scrape: the groups of a server, its readiness, and its certificates' validity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rota.protocol.troubles import TROUBLES


@dataclass(frozen=True, slots=True)
class Census:
    """The state of a server at one moment. `groups` counts the groups of this replica's shards by state."""

    is_ready: bool
    shards: int
    shards_due: int
    groups: Mapping[str, int]
    members: int
    quarantined: int = 0
    """Number of units that assignments of these groups exclude."""
    troubles: Mapping[str, int] = field(default_factory=dict)
    """Number of troubles by kind, as in `rota.protocol.troubles`."""
    critical: Mapping[str, int] = field(default_factory=dict)
    """The number of troubles of each critical group, `NAMESPACE/GROUP`; 1 for one that does not exist."""


NOBODY = Census(is_ready=False, shards=0, shards_due=0, groups={}, members=0)


_KINDS = "; ".join(f"{kind.value}: {counted}" for kind, counted in TROUBLES.items())


class CensusCollector(Collector):
    """Takes a census for each scrape."""

    def __init__(self, take: Callable[[], Census]) -> None:
        self.take = take

    def collect(self) -> Iterator[Metric]:
        census = self.take()
        yield _gauge("rota_ready", "1 if the server is ready, as /readyz says.", census.is_ready)
        yield _gauge("rota_shards", "Shards of the store, over all replicas.", census.shards)
        yield _gauge("rota_shards_due", "Shards that are assigned to this replica.", census.shards_due)
        yield _gauge("rota_groups", "Groups of this replica's shards.", census.groups, "state")
        yield _gauge("rota_troubles", f"Troubles of this replica's groups: {_KINDS}.", census.troubles, "kind")
        documentation = "Troubles of each group that `ROTA_CRITICAL_GROUPS` names; 1 for one that does not exist."
        yield _gauge("rota_critical_group_troubles", documentation, census.critical, "group")
        yield _gauge("rota_members", "Members of this replica's groups: sessions that it watches.", census.members)
        yield _gauge(
            "rota_quarantined_units",
            "Units of work that assignments of this replica's groups exclude.",
            census.quarantined,
        )


def _gauge(name: str, documentation: str, value: float | Mapping[str, int], label: str = "") -> Metric:
    """Create a gauge; with a label, from the values by label."""
    if not isinstance(value, Mapping):
        return GaugeMetricFamily(name, documentation, value=value)
    gauge = GaugeMetricFamily(name, documentation, labels=(label,))
    for of, number in value.items():
        gauge.add_metric((of,), number)
    return gauge


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
