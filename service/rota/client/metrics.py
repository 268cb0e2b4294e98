"""The table of the SDK's metrics, and several clients of one process as one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from rota.client import stats
from rota.client.errors import UnreachableKind
from rota.client.stats import ClientStats, Labels, Sample

_MEMBER = ("rota_namespace", "group_id", "kind")

LABELS: Mapping[str, str] = {
    "rota_namespace": "The client's namespace. Plain `namespace` is a label that Kubernetes adds.",
    "group_id": f"The group. Empty for calls of no member, and for all groups of a client after its first "
    f"{stats.MOST_GROUPS}.",
    "kind": "`election`, `worker_pool`, `consumer`, `connect_worker` or `member`; `client` for calls of no member.",
    "operation": "The name of the call in gRPC, also over HTTP.",
    "outcome": "`ok`; an [error code](errors.md); why no answer came: "
    f"{', '.join(f'`{kind}`' for kind in UnreachableKind)}; "
    "`cancelled`; for commits also `not_held`, where the share was gone before they were sent.",
    "cause": "One of the causes below.",
}


class MetricType(StrEnum):
    """Whether a number only grows."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric under the name that Prometheus has for it."""

    name: str
    unit: str
    """As OpenTelemetry writes units: `s`, or the thing that is counted."""
    labels: Labels
    meaning: str
    merge: Callable[[float, float], float] = float.__add__
    """Makes one value of those of several members that have the same labels."""

    @property
    def type(self) -> MetricType:
        return MetricType.COUNTER if self.name.endswith("_total") else MetricType.GAUGE


METRICS: tuple[Metric, ...] = (
    Metric(stats.CALLS, "call", (*_MEMBER, "operation", "outcome"), "Calls that have ended."),
    Metric(stats.RETRIES, "retry", (*_MEMBER, "operation"), "Calls that repeat one that failed."),
    Metric(stats.REBALANCES, "rebalance", (*_MEMBER, "cause"), "Rebalances that began for a member, losses included."),
    Metric(
        stats.ASSIGNED,
        "unit",
        _MEMBER,
        "Units that members took up: partitions, work items, or 1 for a leadership and for the bytes of a `member`.",
    ),
    Metric(stats.REVOKED, "unit", _MEMBER, "Units that members gave up in order."),
    Metric(stats.LOST, "unit", _MEMBER, "Units that members lost: their work was stopped without a last commit."),
    Metric(stats.COMMITS, "commit", (*_MEMBER, "outcome"), "Commits of the program that have ended."),
    Metric(stats.MEMBERS, "member", _MEMBER, "Members that are started and not closed."),
    Metric(
        stats.IN_TROUBLE,
        "member",
        _MEMBER,
        "Members whose `trouble` is not empty: their calls are not served now, or their topics are not registered.",
    ),
    Metric(stats.HELD, "unit", _MEMBER, "Units that members hold now, by the clock; 1 for an election that leads."),
    Metric(
        stats.HEARTBEAT_AGE,
        "s",
        _MEMBER,
        "Time since the last heartbeat was sent that the coordinator accepted. Grows during a join, which needs none.",
        max,
    ),
    Metric(
        stats.COMMIT_LAG,
        "s",
        _MEMBER,
        "Age of the oldest progress that was stored or handed to `commit` and is not committed yet; 0 without any.",
        max,
    ),
    Metric(stats.COMMIT_AGE, "s", _MEMBER, "Time since the last commit that was accepted.", max),
    Metric(stats.LOOP_LAG, "s", (), "How late the client's event loop was, measured ten times a second.", max),
    Metric(stats.LOOP_LAG_MAX, "s", (), "The largest of these values since the client was opened.", max),
)
_METRIC = {metric.name: metric for metric in METRICS}

Values = dict[str, dict[Labels, float]]
"""Numbers by the name of their metric and the values of its labels."""


class HasStats(Protocol):
    """A client, or its sync twin."""

    @property
    def stats(self) -> ClientStats: ...


class Clients:
    """The clients that one registry or meter shows, added up: a counter never falls, not even when a client ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[ClientStats] = set()
        self._ended: Values = {}
        """The counters of the clients that were removed."""

    def add(self, client: HasStats) -> None:
        """Show this client, until it is closed. Once is enough."""
        added = client.stats
        with self._lock:
            if added in self._open:
                return
            self._open.add(added)
        added.on_close(self._remove)

    def remove(self, client: HasStats) -> None:
        """Show this client no longer. Its counters stay where they are."""
        self._remove(client.stats)

    def _remove(self, removed: ClientStats) -> None:
        with self._lock:
            if removed in self._open:
                self._open.discard(removed)
                _merge(self._ended, removed.counters())

    def collect(self) -> Iterator[tuple[Metric, Mapping[Labels, float]]]:
        """All metrics, with their values now. Any thread may ask."""
        values: Values = {}
        with self._lock:
            for name, samples in self._ended.items():
                values[name] = dict(samples)
            for each in self._open:
                _merge(values, each.counters())
                _merge(values, each.gauges())
        return ((metric, values.get(metric.name, {})) for metric in METRICS)


def _merge(values: Values, samples: Iterable[Sample]) -> None:
    for name, labels, value in samples:
        known = values.setdefault(name, {})
        known[labels] = float(value) if labels not in known else _METRIC[name].merge(known[labels], float(value))
