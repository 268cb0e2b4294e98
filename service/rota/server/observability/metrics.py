"""The metrics of a server, under the names that dashboards and alerts use."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rota.protocol.causes import Cause
from rota.server.observability.census import NOBODY, Census, CensusCollector, CertificateCollector, Validity

METRICS_MEDIA_TYPE = CONTENT_TYPE_LATEST

# Otherwise every counter has a second series with its time of creation.
disable_created_metrics()  # type: ignore[no-untyped-call]

_COMMIT_SECONDS = (0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_BATCH_SIZES = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500)
_REBALANCE_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_LAG_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

_DROPS = tuple(
    (cause, re.compile(pattern))
    for cause, pattern in (
        ("handed_over", r"handed over$"),
        ("lease_lost", r"(the lease |the shard belongs to another)"),
        ("store_failed", r"a write has an unknown outcome"),
        ("broken_invariant", r"a broken invariant"),
    )
)
"""The causes of dropped shards as a small set of codes."""


class Count:
    """A number that only the event loop changes. The library's counters take a lock, which costs more than a
    microsecond.
    """

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


class _Counts(Collector):
    """A counter of such numbers by label values. Frequent callers keep the number itself."""

    def __init__(self, name: str, documentation: str, labels: tuple[str, ...], registry: CollectorRegistry) -> None:
        self._described = (name, documentation, labels)
        self.of: defaultdict[tuple[str, ...], Count] = defaultdict(Count)
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        name, documentation, labels = self._described
        family = CounterMetricFamily(name, documentation, labels=labels)
        for values, count in self.of.items():
            family.add_metric(values, count.number)
        yield family


class Metrics:
    """One server's metrics in their own registry, so that tests and embedded servers never share numbers.

    Labels are operations and error codes only: never a member, and no group unless a setting names it.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        counts = partial(_Counts, registry=self.registry)
        self._requests = counts("rota_requests", "Requests answered.", ("operation", "code"))
        self._heartbeats = counts("rota_heartbeats", "Heartbeats answered, one per member.", ("result",))
        self._browser_refusals = counter(
            "rota_browser_requests_refused_total",
            "Requests rejected for their Host, Origin or Sec-Fetch-Site header.",
            ["reason"],
        )
        self._over_budget = counter(
            "rota_over_budget_total",
            "Requests and connections that were rejected because a budget was exhausted.",
            ["budget"],
        )
        self._over_quota = counter(
            "rota_over_quota_total",
            "Operations that were rejected because a quota of their namespace or caller was exhausted.",
            ["scope", "quota"],
        )
        self._waiters = gauge("rota_waiters", "Calls that are parked now.", ["operation"])
        self._waiters_of: dict[str, Count] = {}
        """Looking up the label costs as much as counting."""
        streams = gauge("rota_event_streams", "Event streams that are open now.")
        self._streaming: AbstractContextManager[None] = streams.track_inprogress()
        """One object for all streams, because there are tens of thousands."""
        self._lag = histogram(
            "rota_event_loop_lag_seconds",
            "Delay between the due time of a callback and its execution on the event loop.",
            buckets=_LAG_SECONDS,
        )
        self._commit_seconds = histogram(
            "rota_commit_duration_seconds", "Duration of the journal's transactions.", buckets=_COMMIT_SECONDS
        )
        self._commit_batch = histogram(
            "rota_commit_batch_events", "Journal events per transaction.", buckets=_BATCH_SIZES
        )
        self._timer_lateness = histogram(
            "rota_timer_lateness_seconds", "Delay of timers after the event loop was blocked.", buckets=_LAG_SECONDS
        )
        self._liveness_updates = counter("rota_liveness_updates_total", "Heartbeat times of members written to Redis.")
        self._liveness_failures = counter("rota_liveness_failures_total", "Failed calls to Redis.", ["operation"])
        self._store_copied = counter(
            "rota_store_copied_total",
            "Shards that were not claimed because their owners hold them in the store of which this one is a copy.",
        )
        self._liveness_unusable = counter(
            "rota_liveness_unusable_total", "Answers of Redis about keys with contents that no replica writes."
        )
        self._events = counts("rota_journal_events", "Journal events that became durable.", ("kind",))
        self._journal_lines = gauge(
            "rota_journal_lines",
            "Lines of the store's whole journal that are not pruned, counted once a minute, the same at each server.",
        )
        self._shards_owned = gauge("rota_shards_owned", "Shards this replica owns.")
        self._draining = gauge("rota_draining", "1 while the server is draining.")
        self._group_changes = counter(
            "rota_group_changes_total",
            "Changes of groups: rebalances that started, resyncs, and takeovers of a static member's place.",
            ["cause"],
        )
        self._rebalance_seconds = histogram(
            "rota_rebalance_duration_seconds",
            "Duration of rebalances by phase: join, then sync with the leader's assignment.",
            ["phase"],
            buckets=_REBALANCE_SECONDS,
        )
        self._expiry_lateness = histogram(
            "rota_expiry_lateness_seconds", "Delay between a member's deadline and its expiry.", buckets=_LAG_SECONDS
        )
        self._forwarded = counts("rota_forwarded_calls", "Calls that were forwarded to a peer.", ("code",))
        self._shards_dropped = counter("rota_shards_dropped_total", "Shards this replica stopped owning.", ["cause"])
        self._shard_load_seconds = histogram(
            "rota_shard_load_duration_seconds", "Duration of loading a shard from the store.", buckets=_COMMIT_SECONDS
        )
        self._store_failures = counter("rota_store_failures_total", "Failed calls to the store.", ["operation"])
        self._store_went_back = counter(
            "rota_store_went_back_total", "Shards that lost events because the store went back to an earlier state."
        )
        self._gate_sessions = counter(
            "rota_gate_sessions_terminated_total",
            "Postgres sessions that were terminated because they blocked the gate of a shard.",
            ["role"],
        )
        # Without Redis there is no sample: the label delays the series until it is used.
        self._liveness_up = gauge("rota_liveness_up", "1 if Redis answered the last call, 0 if it did not.", ["store"])
        self._build = gauge("rota_build_info", "1, with the release as label.", ["version"])
        self._census = CensusCollector(lambda: NOBODY)
        self.registry.register(self._census)
        self._certificates = CertificateCollector()
        self.registry.register(self._certificates)

    def serves(self, version: str, take_census: Callable[[], Census]) -> None:
        """Export the metrics of a server process, which is read for each scrape."""
        self._build.labels(version).set(1)
        self._census.take = take_census
        ProcessCollector(registry=self.registry)

    def certificate_shown(self, use: str, look: Callable[[], Validity]) -> None:
        """Export the certificate that the server presents to `clients` or `peers`; it is read for each scrape."""
        self._certificates.shown[use] = look

    def request_answered(self, operation: str, code: str) -> None:
        """Count an answer; `code` is the error code's name, NONE for success."""
        self._requests.of[operation, code].number += 1

    def heartbeat_answered(self, result: str, members: int = 1) -> None:
        """Count heartbeats of several members; `result` is the error code's name."""
        self._heartbeats.of[(result,)].number += members

    def browser_refused(self, reason: str) -> None:
        """Count a rejected browser; `reason` is malformed_host, foreign_host or foreign_page."""
        self._browser_refusals.labels(reason).inc()

    def over_budget(self, budget: str) -> None:
        """Count a rejection; `budget` is the name of a field of `Budgets`."""
        self._over_budget.labels(budget).inc()

    def over_quota(self, scope: str, quota: str) -> None:
        """Count a rejection; `scope` is namespace or caller, `quota` the name of a field of `Quota`."""
        self._over_quota.labels(scope, quota).inc()

    @contextmanager
    def parked(self, operation: str) -> Iterator[None]:
        """Count a call as parked while the block runs."""
        waiters = self.waiters(operation)
        waiters.number += 1
        try:
            yield
        finally:
            waiters.number -= 1

    def waiters(self, operation: str) -> Count:
        """Return the count of an operation's parked calls. Only for the event loop."""
        waiters = self._waiters_of.get(operation)
        if waiters is None:
            waiters = self._waiters_of[operation] = Count()
            self._waiters.labels(operation).set_function(lambda: waiters.number)
        return waiters

    def streaming(self) -> AbstractContextManager[None]:
        """Count an event stream as open while the block runs."""
        return self._streaming

    def loop_lagged(self, lag_seconds: float) -> None:
        self._lag.observe(lag_seconds)

    def committed(self, events: int, duration_seconds: float) -> None:
        """Observe one transaction of the journal with its number of lines."""
        self._commit_batch.observe(events)
        self._commit_seconds.observe(duration_seconds)

    def timer_late(self, lateness_seconds: float) -> None:
        self._timer_lateness.observe(lateness_seconds)

    def liveness_updates(self, members: int) -> None:
        self._liveness_updates.inc(members)
        self.liveness_answered()

    def liveness_failed(self, operation: str) -> None:
        """Count a failure; `operation` is one of publish, ask, record, read, ping."""
        self._liveness_failures.labels(operation).inc()
        self._liveness_up.labels("redis").set(0)

    def store_copied(self, shards: int) -> None:
        self._store_copied.inc(shards)

    def liveness_unusable(self) -> None:
        self._liveness_unusable.inc()

    def liveness_answered(self) -> None:
        self._liveness_up.labels("redis").set(1)

    def events_written(self, kind: str, count: int) -> None:
        """Count journal lines; the kinds are a fixed set."""
        self._events.of[(kind,)].number += count

    def journal_counted(self, lines: int) -> None:
        """Set the number of lines in the journal of the whole store."""
        self._journal_lines.set(lines)

    def shards_owned(self, count: int) -> None:
        self._shards_owned.set(count)

    def shard_loaded(self, seconds: float) -> None:
        self._shard_load_seconds.observe(seconds)

    def shard_dropped(self, reason: str) -> None:
        """Count a dropped shard; the label is one of a few codes for `reason`."""
        cause = next((code for code, pattern in _DROPS if pattern.match(reason)), Cause.OTHER.value)
        self._shards_dropped.labels(cause).inc()

    def store_went_back(self, shards: int) -> None:
        """Count shards of which the store has lost lines."""
        self._store_went_back.inc(shards)

    def store_failed(self, operation: str) -> None:
        """Count a failure; `operation` is commit or leases."""
        self._store_failures.labels(operation).inc()

    def gate_session_terminated(self, role: str) -> None:
        """Count a terminated session; `role` is its role in the database, of which there are few."""
        self._gate_sessions.labels(role).inc()

    def group_changed(self, cause: str) -> None:
        """Count a change; `cause` is a code of `rota.protocol.causes`, as in the journal, or takeover."""
        self._group_changes.labels(cause).inc()

    def rebalance_phase_ended(self, phase: str, duration_ms: int) -> None:
        """Observe a phase; `phase` is join or sync."""
        self._rebalance_seconds.labels(phase).observe(max(0, duration_ms) / 1000)

    def member_expired(self, lateness_ms: int) -> None:
        self._expiry_lateness.observe(max(0, lateness_ms) / 1000)

    def forwarded(self, code: str) -> None:
        """Count a forwarded call; `code` is the name of the peer's error code, or UNREACHABLE without an answer."""
        self._forwarded.of[(code,)].number += 1

    def draining(self) -> None:
        self._draining.set(1)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
