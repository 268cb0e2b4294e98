"""Metrics that are computed for each scrape: the groups of a server, and whether it is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class Census:
    """One look at a server. `groups` counts those of this replica's shards by state."""

    is_ready: bool
    shards: int
    shards_due: int
    groups: Mapping[str, int]
    members: int
    oldest_rebalance_ms: int
    """Duration of the longest rebalance in progress; 0 without one."""
    quarantined: int = 0
    """Units that assignments of these groups leave out."""


NOBODY = Census(is_ready=False, shards=0, shards_due=0, groups={}, members=0, oldest_rebalance_ms=0)


class CensusCollector(Collector):
    """Takes a census for each scrape."""

    def __init__(self, take: Callable[[], Census]) -> None:
        self.take = take

    def collect(self) -> Iterator[Metric]:
        census = self.take()
        yield _gauge("rota_ready", "1 if the server is ready, as /readyz says.", census.is_ready)
        yield _gauge("rota_shards", "Shards of the store, over all replicas.", census.shards)
        yield _gauge("rota_shards_due", "Shards that are assigned to this replica.", census.shards_due)
        groups = GaugeMetricFamily("rota_groups", "Groups of this replica's shards.", labels=("state",))
        for state, count in census.groups.items():
            groups.add_metric((state,), count)
        yield groups
        yield _gauge("rota_members", "Members of this replica's groups: sessions that it watches.", census.members)
        yield _gauge(
            "rota_oldest_rebalance_seconds",
            "Duration of the longest rebalance in progress.",
            census.oldest_rebalance_ms / 1000,
        )
        yield _gauge(
            "rota_quarantined_units",
            "Units of work that assignments of this replica's groups leave out.",
            census.quarantined,
        )


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=value)
