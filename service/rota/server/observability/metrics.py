"""The metrics of a server, under the names that dashboards and alerts use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

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

from rota.server.observability.causes import drop_cause
from rota.server.observability.census import NOBODY, Census, CensusCollector
from rota.server.observability.certificates import CertificateCollector, Validity

METRICS_MEDIA_TYPE = CONTENT_TYPE_LATEST

# Otherwise every counter has a second series with its time of creation.
disable_created_metrics()  # type: ignore[no-untyped-call]

_COMMIT_SECONDS = (0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_BATCH_SIZES = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500)
_REBALANCE_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_LAG_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


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
        self._requests = _Counts("rota_requests", "Requests answered.", ("operation", "code"), self.registry)
        self._heartbeats = _Counts(
            "rota_heartbeats", "Heartbeats answered, one per member.", ("result",), self.registry
        )
        self._browser_refusals = Counter(
            "rota_browser_requests_refused_total",
            "Requests rejected for their Host, Origin or Sec-Fetch-Site header.",
            ["reason"],
            registry=self.registry,
        )
        self._over_budget = Counter(
            "rota_over_budget_total",
            "Requests and connections that were rejected because a budget was exhausted.",
            ["budget"],
            registry=self.registry,
        )
        self._over_quota = Counter(
            "rota_over_quota_total",
            "Operations that were rejected because a quota of their namespace or caller was exhausted.",
            ["scope", "quota"],
            registry=self.registry,
        )
        self._waiters = Gauge("rota_waiters", "Calls that are parked now.", ["operation"], registry=self.registry)
        self._waiters_of: dict[str, Count] = {}
        """Looking up the label costs as much as counting."""
        streams = Gauge("rota_event_streams", "Event streams that are open now.", registry=self.registry)
        self._streaming: AbstractContextManager[None] = streams.track_inprogress()
        """One object for all streams, because there are tens of thousands."""
        self._lag = Histogram(
            "rota_event_loop_lag_seconds",
            "Delay between the due time of a callback and its execution on the event loop.",
            buckets=_LAG_SECONDS,
            registry=self.registry,
        )
        self._commit_seconds = Histogram(
            "rota_commit_duration_seconds",
            "Duration of the journal's transactions.",
            buckets=_COMMIT_SECONDS,
            registry=self.registry,
        )
        self._commit_batch = Histogram(
            "rota_commit_batch_events",
            "Journal events per transaction.",
            buckets=_BATCH_SIZES,
            registry=self.registry,
        )
        self._timer_lateness = Histogram(
            "rota_timer_lateness_seconds",
            "Delay of timers after the event loop was blocked.",
            buckets=_LAG_SECONDS,
            registry=self.registry,
        )
        self._liveness_updates = Counter(
            "rota_liveness_updates_total", "Heartbeat times of members written to Redis.", registry=self.registry
        )
        self._liveness_failures = Counter(
            "rota_liveness_failures_total", "Failed calls to Redis.", ["operation"], registry=self.registry
        )
        self._store_copied = Counter(
            "rota_store_copied_total",
            "Shards that were not claimed because their owners hold them in the store of which this one is a copy.",
            registry=self.registry,
        )
        self._liveness_unusable = Counter(
            "rota_liveness_unusable_total",
            "Answers of Redis about keys with contents that no replica writes.",
            registry=self.registry,
        )
        self._events = _Counts("rota_journal_events", "Journal events that became durable.", ("kind",), self.registry)
        self._journal_lines = Gauge(
            "rota_journal_lines",
            "Lines of the store's whole journal that are not pruned, counted once a minute, the same at each server.",
            registry=self.registry,
        )
        self._shards_owned = Gauge("rota_shards_owned", "Shards this replica owns.", registry=self.registry)
        self._draining = Gauge("rota_draining", "1 while the server is draining.", registry=self.registry)
        self._group_changes = Counter(
            "rota_group_changes_total",
            "Changes of groups: rebalances that started, resyncs, and takeovers of a static member's place.",
            ["cause"],
            registry=self.registry,
        )
        self._rebalance_seconds = Histogram(
            "rota_rebalance_duration_seconds",
            "Duration of rebalances by phase: join, then sync with the leader's assignment.",
            ["phase"],
            buckets=_REBALANCE_SECONDS,
            registry=self.registry,
        )
        self._expiry_lateness = Histogram(
            "rota_expiry_lateness_seconds",
            "Delay between a member's deadline and its expiry.",
            buckets=_LAG_SECONDS,
            registry=self.registry,
        )
        self._forwarded = _Counts(
            "rota_forwarded_calls", "Calls that were forwarded to a peer.", ("code",), self.registry
        )
        self._shards_dropped = Counter(
            "rota_shards_dropped_total", "Shards this replica stopped owning.", ["cause"], registry=self.registry
        )
        self._shard_load_seconds = Histogram(
            "rota_shard_load_duration_seconds",
            "Duration of loading a shard from the store.",
            buckets=_COMMIT_SECONDS,
            registry=self.registry,
        )
        self._store_failures = Counter(
            "rota_store_failures_total", "Failed calls to the store.", ["operation"], registry=self.registry
        )
        self._store_went_back = Counter(
            "rota_store_went_back_total",
            "Shards that lost events because the store went back to an earlier state.",
            registry=self.registry,
        )
        self._gate_sessions = Counter(
            "rota_gate_sessions_terminated_total",
            "Postgres sessions that were terminated because they blocked the gate of a shard.",
            ["role"],
            registry=self.registry,
        )
        # Without Redis there is no sample: the label delays the series until it is used.
        self._liveness_up = Gauge(
            "rota_liveness_up",
            "1 if Redis answered the last call, 0 if it did not.",
            ["store"],
            registry=self.registry,
        )
        self._build = Gauge("rota_build_info", "1, with the release as label.", ["version"], registry=self.registry)
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
        self._shards_dropped.labels(drop_cause(reason)).inc()

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
