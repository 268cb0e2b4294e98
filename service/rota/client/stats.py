"""Counters of the members of one client, as plain numbers that the SDK always keeps, without any library.

The client's event loop and heartbeat thread write them; any thread may read them. `rota.client.metrics` has the table
of the numbers, `rota.client.stats` adds up several clients, and `rota.adapters.prometheus` and `.opentelemetry`
export them.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, Protocol, TypeAlias

from rota.client import metrics
from rota.client.clock import LoopLag
from rota.client.errors import CoordinatorError, CoordinatorUnreachable, MembershipLost
from rota.client.metrics import METRICS, MOST_GROUPS, Labels, Metric, RebalanceCauses
from rota.client.transports.port import Answer
from rota.core.membership import events as core
from rota.core.membership.events import LATER
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import CommitOffsets, Heartbeat, JoinGroup, Request

Sample: TypeAlias = tuple[Metric, Labels, float]
"""A metric, the values of its labels, and the number."""

_OK = "ok"
_CANCELLED = "cancelled"
_NOT_HELD = "not_held"
_RENEWING = (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)


def outcome_of(answer: Answer | CoordinatorUnreachable) -> str:
    """Return how a call ended, in one word: ok, an error code, or the cause of a missing answer."""
    if isinstance(answer, CoordinatorUnreachable):
        return answer.kind.value
    error = answer.reply.error
    return _OK if error is ErrorCode.NONE else error.value


def units_of(share: Any) -> int:
    """Return the number of units of a share: partitions, work items, or 1 for a leadership and for bytes of the
    program.
    """
    return len(share) if isinstance(share, tuple) else int(bool(share))


class Counts:
    """Counters by their metric and the values of its own labels. Any thread may count and read."""

    __slots__ = ("_lock", "_values")

    def __init__(self) -> None:
        self._values: dict[tuple[Metric, Labels], int] = {}
        self._lock = threading.RLock()
        """Reentrant, because a coroutine that the garbage collector closes may count."""

    def add(self, metric: Metric, *labels: str, count: int = 1) -> None:
        key = metric, labels
        with self._lock:
            self._values[key] = self._values.get(key, 0) + count

    def values(self) -> dict[tuple[Metric, Labels], int]:
        """Return a copy, made in one step: a reader never waits for a writer, not even in a forked child."""
        return self._values.copy()


class GroupBound:
    """Gives the first `MOST_GROUPS` groups their own labels, and empty labels to all further groups."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()

    def names_of(self, namespace: str, group_id: str) -> tuple[str, str]:
        """Return the labels for a group's namespace and id."""
        group = (namespace, group_id)
        if group not in self._known and len(self._known) >= MOST_GROUPS:
            return "", ""
        self._known.add(group)
        return group


class CallStats:
    """Counts each call once, when it has ended."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def ended(self, request: Request, outcome: Answer | CoordinatorUnreachable) -> None:
        """Count a call that was answered, or got no answer."""
        self._counts.add(metrics.CALLS, type(request).__name__, outcome_of(outcome))

    def cancelled(self, request: Request) -> None:
        """Count a call that was cancelled before an answer, for example because a rebalance made it pointless."""
        self._counts.add(metrics.CALLS, type(request).__name__, _CANCELLED)

    def repeated(self, request: Request) -> None:
        """Count a call that is sent again after a failure."""
        self._counts.add(metrics.RETRIES, type(request).__name__)


class Observed(Protocol):
    """The properties of a member that any thread reads when its gauges are collected."""

    @property
    def assignment(self) -> Any: ...

    @property
    def trouble(self) -> str: ...


class MemberStats(CallStats):
    """The numbers of one member. Its counters belong to its group and outlive it."""

    def __init__(self, client: ClientStats, namespace: str, group_id: str, kind: str) -> None:
        self._client = client
        self._group = (namespace, group_id)
        self.now_ms: Callable[[], int] = lambda: 0
        """The clock of the member's deadlines. Any thread may call it."""
        self.troubles_of_work: Callable[[], list[str]] = list
        """The troubles of a pool's shards, a sentence for each. Any thread may call it."""
        self.stored: dict[Any, Any] = {}
        """Uncommitted progress by partition. Any thread may read it."""
        self._stored_at_ms: dict[Any, int] = {}
        self._queued_at_ms: dict[asyncio.Future[None], int] = {}
        self._heartbeat_at_ms: int | None = None
        self._committed_at_ms: int | None = None
        self._causes = RebalanceCauses()
        self._failed = ""
        """The operation that the member will repeat, if any."""
        self.set_kind(kind)

    def set_kind(self, kind: str) -> None:
        """Count as this kind from now on: that of the program's object, such as an election or a worker pool."""
        self.labels = self._client.labels_of(*self._group, kind)
        self._counts = self._client.counts_of(self.labels)

    def begin(self, member: Observed) -> None:
        """The member was started. Counters of units start with 0: Prometheus sees no increase in a first value."""
        self._heartbeat_at_ms = self.now_ms()
        for metric in (metrics.ASSIGNED, metrics.REVOKED, metrics.LOST):
            self._counts.add(metric, count=0)
        self._client.begin(self, member)

    def end(self) -> None:
        """The member has ended: its gauges disappear, its counters remain."""
        self._client.end(self)

    # --- calls --------------------------------------------------------------------------------

    def sends(self, request: Request) -> None:
        """The member is about to make a call."""
        if self._failed == type(request).__name__:
            self.repeated(request)

    def exchanged(self, request: Request, outcome: Answer | CoordinatorUnreachable, sent_at_ms: int) -> None:
        """Count a finished call of the member; commits repeat themselves, the driver repeats all other calls."""
        if isinstance(request, CommitOffsets):
            return
        if self._heartbeat_at_ms is None and isinstance(request, JoinGroup):
            # The member returns after it stepped aside.
            self._heartbeat_at_ms = sent_at_ms
        error = _error_of(outcome)
        self._failed = type(request).__name__ if error is None or error in LATER else ""
        if isinstance(request, Heartbeat):
            self._note_heartbeat(error, sent_at_ms)

    def beaten(self, request: Heartbeat, outcome: Answer | CoordinatorUnreachable, sent_at_ms: int) -> None:
        """Count a finished heartbeat of the heartbeat thread."""
        self.ended(request, outcome)
        self._note_heartbeat(_error_of(outcome), sent_at_ms)

    def _note_heartbeat(self, error: ErrorCode | None, sent_at_ms: int) -> None:
        if error in _RENEWING:
            self._heartbeat_at_ms = max(self._heartbeat_at_ms or 0, sent_at_ms)

    # --- rebalances and shares ----------------------------------------------------------------

    def observe(self, event: core.Event) -> None:
        """Count an event of the member, which may start a rebalance."""
        if cause := self._causes.cause_of(event):
            self._counts.add(metrics.REBALANCES, cause)

    def steps_out(self, cause: str) -> None:
        """Count that the member leaves, to join again later: until then no heartbeats are due."""
        self._counts.add(metrics.REBALANCES, self._causes.begin(cause))
        self._heartbeat_at_ms = None

    def count(self, metric: Metric, share: Any) -> None:
        """Count the units of a share as assigned, revoked or lost."""
        self._counts.add(metric, count=units_of(share))

    # --- commits ------------------------------------------------------------------------------

    def progress_stored(self, place: Any) -> None:
        """Note progress of `place`; call it just before the progress is stored."""
        if place not in self.stored:
            self._stored_at_ms[place] = self.now_ms()

    def commit_queued(self, places: Collection[Any], outcome: asyncio.Future[None]) -> None:
        """Note a commit of the progress of `places`; `outcome` is the commit's future."""
        since_ms = [self._stored_at_ms[place] for place in places if place in self.stored]
        self._queued_at_ms[outcome] = min(since_ms, default=self.now_ms())
        outcome.add_done_callback(partial(self._committed, places))

    def _committed(self, places: Collection[Any], outcome: asyncio.Future[None]) -> None:
        since_ms = self._queued_at_ms.pop(outcome)
        word = _outcome_of_commit(outcome)
        self._counts.add(metrics.COMMITS, word)
        if word == _OK:
            self._committed_at_ms = self.now_ms()
            return
        for place in places:
            # Progress stored meanwhile contains the uncommitted progress.
            self._stored_at_ms[place] = min(self._stored_at_ms.get(place, since_ms), since_ms)

    # --- reading ------------------------------------------------------------------------------

    def gauges(self, member: Observed) -> Iterator[tuple[Metric, float]]:
        """Yield the current values of this member's gauges."""
        now_ms = self.now_ms()
        yield metrics.MEMBERS, 1
        yield metrics.IN_TROUBLE, int(bool(member.trouble))
        yield metrics.HELD, units_of(member.assignment)
        yield metrics.SHARDS_IN_TROUBLE, len(self.troubles_of_work())
        yield metrics.COMMIT_LAG, _seconds_since(self._oldest_uncommitted_ms(), now_ms) or 0.0
        if (age_s := _seconds_since(self._heartbeat_at_ms, now_ms)) is not None:
            yield metrics.HEARTBEAT_AGE, age_s
        if (age_s := _seconds_since(self._committed_at_ms, now_ms)) is not None:
            yield metrics.COMMIT_AGE, age_s

    def _oldest_uncommitted_ms(self) -> int | None:
        stored_at_ms = self._stored_at_ms.copy()
        waiting = [stored_at_ms[place] for place in self.stored.copy() if place in stored_at_ms]
        return min((*waiting, *self._queued_at_ms.copy().values()), default=None)


class ClientStats:
    """The numbers of one client: of its members by group and kind, and of its other calls."""

    def __init__(self, namespace: str = "") -> None:
        self._lag: LoopLag | None = None
        self._counts: dict[Labels, Counts] = {}
        self._members: dict[MemberStats, weakref.ref[Any]] = {}
        self._groups = GroupBound()
        self._on_close: list[Callable[[ClientStats], None]] = []
        self._is_closed = False
        self.calls = CallStats(self.counts_of((namespace, "", "client")))
        """Calls that no member makes."""

    def labels_of(self, namespace: str, group_id: str, kind: str) -> Labels:
        """Return the labels of a group's members."""
        return (*self._groups.names_of(namespace, group_id), kind)

    def counts_of(self, labels: Labels) -> Counts:
        return self._counts.setdefault(labels, Counts())

    def watch_loop(self, lag: LoopLag) -> None:
        """Export the lag of the client's event loop."""
        self._lag = lag

    def begin(self, stats: MemberStats, member: Observed) -> None:
        self._members[stats] = weakref.ref(member, lambda _: self.end(stats))

    def end(self, stats: MemberStats) -> None:
        self._members.pop(stats, None)

    def on_close(self, act: Callable[[ClientStats], None]) -> None:
        """Call `act` when the client is closed, or at once if it is closed."""
        self._on_close.append(act)
        if self._is_closed:
            self.close()

    def close(self) -> None:
        """Note that the client is closed."""
        self._is_closed = True
        while self._on_close:
            self._on_close.pop()(self)

    # --- reading ------------------------------------------------------------------------------

    def counters(self) -> Iterator[Sample]:
        """Yield all counters. Any thread may call it."""
        for labels, counts in self._counts.copy().items():
            for (metric, own), count in counts.values().items():
                yield metric, (*labels, *own), count

    def gauges(self) -> Iterator[Sample]:
        """Yield the current values of all gauges. Any thread may call it."""
        if self._lag is not None:
            yield metrics.LOOP_LAG, (), self._lag.last
            yield metrics.LOOP_LAG_MAX, (), self._lag.worst
        for stats, reference in self._members.copy().items():
            if (member := reference()) is not None:
                for metric, value in stats.gauges(member):
                    yield metric, stats.labels, value


def _error_of(outcome: Answer | CoordinatorUnreachable) -> ErrorCode | None:
    """Return the code of an answer; None without an answer."""
    return None if isinstance(outcome, CoordinatorUnreachable) else outcome.reply.error


def _outcome_of_commit(outcome: asyncio.Future[None]) -> str:
    if outcome.cancelled():
        return _CANCELLED
    match outcome.exception():
        case None:
            return _OK
        case CoordinatorUnreachable() as error:
            return error.kind.value
        case CoordinatorError() as error if type(error) is not MembershipLost:
            return error.code.value
        case _:
            return _NOT_HELD


def _seconds_since(at_ms: int | None, now_ms: int) -> float | None:
    return None if at_ms is None else max(0, now_ms - at_ms) / 1000


Values: TypeAlias = dict[Metric, dict[Labels, float]]
"""Numbers by their metric and the values of its labels."""


class HasStats(Protocol):
    """A client, or its sync twin."""

    @property
    def stats(self) -> ClientStats: ...


class Clients:
    """The clients that one registry or meter exports, added up: a counter never falls, even if a client ends."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        """Reentrant, because the garbage collector may close a client in any thread."""
        self._open: dict[ClientStats, None] = {}
        self._ended: Values = {}
        """The counters of removed clients."""
        self._groups, self._namespaces = GroupBound(), GroupBound()

    def add(self, client: HasStats) -> None:
        """Export this client until it is closed. A second call has no effect."""
        added = client.stats
        with self._lock:
            if added in self._open:
                return
            self._open[added] = None
        added.on_close(self._remove)

    def remove(self, client: HasStats) -> None:
        """Stop exporting this client. Its counters remain."""
        self._remove(client.stats)

    def _remove(self, removed: ClientStats) -> None:
        with self._lock:
            if removed in self._open:
                del self._open[removed]
                self._merge(self._ended, removed.counters())

    def collect(self) -> Values:
        """Return all metrics with their current values. Any thread may call it."""
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
        """Bound the labels: a program with a client per group has no more series than one with a single client."""
        if not labels:
            return labels
        namespace, group_id, *others = labels
        bound = self._groups if group_id else self._namespaces
        return (*bound.names_of(namespace, group_id), *others)
