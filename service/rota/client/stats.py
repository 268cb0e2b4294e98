"""What the members of one client have done, as plain numbers that the SDK always keeps, without any library.

The event loop of the client and its heartbeat thread write; any thread may read at any time. `rota.client.metrics` has
the table of the numbers and adds up several clients; `rota.adapters.prometheus` and `.opentelemetry` export them.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

from rota.client.errors import CoordinatorError, CoordinatorUnreachable, MembershipLost
from rota.client.lag import LoopLag
from rota.client.rebalance_causes import RebalanceCauses
from rota.client.transports.port import Answer
from rota.membership import events as core
from rota.membership.states import LATER
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import CommitOffsets, Heartbeat, Request

CALLS = "rota_client_calls_total"
RETRIES = "rota_client_retries_total"
REBALANCES = "rota_client_rebalances_total"
ASSIGNED = "rota_client_units_assigned_total"
REVOKED = "rota_client_units_revoked_total"
LOST = "rota_client_units_lost_total"
COMMITS = "rota_client_commits_total"
MEMBERS = "rota_client_members"
IN_TROUBLE = "rota_client_members_in_trouble"
HELD = "rota_client_units_held"
HEARTBEAT_AGE = "rota_client_heartbeat_age_seconds"
COMMIT_LAG = "rota_client_commit_lag_seconds"
COMMIT_AGE = "rota_client_commit_age_seconds"
LOOP_LAG = "rota_client_event_loop_lag_seconds"
LOOP_LAG_MAX = "rota_client_event_loop_lag_max_seconds"

Labels: TypeAlias = tuple[str, ...]
Sample: TypeAlias = tuple[str, Labels, float]
"""The name of a metric, the values of its labels, and the number."""

MOST_GROUPS = 100
"""Of one client, that have a label of their own; the others share an empty `group_id`, so that labels have a bound."""

_OK = "ok"
_CANCELLED = "cancelled"
_NOT_HELD = "not_held"
_RENEWING = (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)


def outcome_of(answer: Answer | CoordinatorUnreachable) -> str:
    """How a call ended, in one word: ok, an error code, or why no answer came."""
    if isinstance(answer, CoordinatorUnreachable):
        return answer.kind.value
    error = answer.reply.error
    return _OK if error is ErrorCode.NONE else error.value


def units_of(share: Any) -> int:
    """The number of units of a share: partitions, work items, or 1 for a leadership and for bytes of the program."""
    return len(share) if isinstance(share, tuple) else int(bool(share))


class Counts:
    """Counters by the name of their metric and the values of its labels. Any thread may count and read."""

    __slots__ = ("_lock", "_values")

    def __init__(self) -> None:
        self._values: dict[Labels, int] = {}
        self._lock = threading.RLock()
        """Reentrant: a coroutine that the garbage collector closes may count, too."""

    def add(self, key: Labels, count: int = 1) -> None:
        with self._lock:
            self._values[key] = self._values.get(key, 0) + count

    def values(self) -> dict[Labels, int]:
        """A copy, which is made in one step: a reader waits for no writer, not even in a forked child."""
        return self._values.copy()


class CallStats:
    """Counts calls, each once, when it has ended."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def ended(self, request: Request, outcome: Answer | CoordinatorUnreachable) -> None:
        """A call was answered, or got no answer."""
        self._counts.add((CALLS, type(request).__name__, outcome_of(outcome)))

    def cancelled(self, request: Request) -> None:
        """A call was cancelled before an answer came, as where a rebalance made it pointless."""
        self._counts.add((CALLS, type(request).__name__, _CANCELLED))

    def repeated(self, request: Request) -> None:
        """A call is sent again, because the one before was of no use."""
        self._counts.add((RETRIES, type(request).__name__))


class Observed(Protocol):
    """The properties of a member that are read, by any thread, when its gauges are collected."""

    @property
    def assignment(self) -> Any: ...

    @property
    def trouble(self) -> str: ...


class MemberStats(CallStats):
    """The numbers of one member. Its counters are those of its group, which outlive it."""

    def __init__(self, client: ClientStats, namespace: str, group_id: str, kind: str) -> None:
        self._client = client
        self._group = (namespace, group_id)
        self.now_ms: Callable[[], int] = lambda: 0
        """The clock of the member's deadlines. Any thread may call it."""
        self._stored: dict[Any, Any] = {}
        self._stored_at_ms: dict[Any, int] = {}
        self._queued_at_ms: dict[asyncio.Future[None], int] = {}
        self._heartbeat_at_ms: int | None = None
        self._committed_at_ms: int | None = None
        self._causes = RebalanceCauses()
        self._failed = ""
        """The operation that the member is to repeat, if any."""
        self.set_kind(kind)

    def set_kind(self, kind: str) -> None:
        """Count as this kind from now on: that of the object which the program uses, an election or a worker pool."""
        self.labels = self._client.labels_of(*self._group, kind)
        self._counts = self._client.counts_of(self.labels)

    def begin(self, member: Observed) -> None:
        """The member was started."""
        self._client.begin(self, member)

    def end(self) -> None:
        """The member is over: its gauges disappear, its counters stay."""
        self._client.end(self)

    # --- calls --------------------------------------------------------------------------------

    def exchanged(self, request: Request, outcome: Answer | CoordinatorUnreachable, sent_at_ms: int) -> None:
        """The member learns how a call of its own ended; commits repeat themselves, all others the driver repeats."""
        if isinstance(request, CommitOffsets):
            return
        operation = type(request).__name__
        if self._failed == operation:
            self.repeated(request)
        if isinstance(outcome, CoordinatorUnreachable):
            self._failed = operation
            return
        self._failed = operation if outcome.reply.error in LATER else ""
        if isinstance(request, Heartbeat):
            self._note_heartbeat(outcome.reply.error, sent_at_ms)

    def beaten(self, request: Heartbeat, outcome: Answer | CoordinatorUnreachable, sent_at_ms: int) -> None:
        """A heartbeat of the heartbeat thread has ended."""
        self.ended(request, outcome)
        if not isinstance(outcome, CoordinatorUnreachable):
            self._note_heartbeat(outcome.reply.error, sent_at_ms)

    def _note_heartbeat(self, error: ErrorCode, sent_at_ms: int) -> None:
        if error in _RENEWING:
            self._heartbeat_at_ms = max(self._heartbeat_at_ms or 0, sent_at_ms)

    # --- rebalances and shares ----------------------------------------------------------------

    def observe(self, event: core.Event) -> None:
        """Something has happened to the member: it may be the beginning of a rebalance."""
        if cause := self._causes.cause_of(event):
            self._counts.add((REBALANCES, cause))

    def steps_out(self, cause: str) -> None:
        """The member leaves by itself, to join again later: no heartbeats are due until then."""
        self._counts.add((REBALANCES, self._causes.begin(cause)))
        self._heartbeat_at_ms = None

    def assigned(self, share: Any) -> None:
        self._counts.add((ASSIGNED,), units_of(share))

    def revoked(self, share: Any) -> None:
        self._counts.add((REVOKED,), units_of(share))

    def lost(self, share: Any) -> None:
        self._counts.add((LOST,), units_of(share))

    # --- commits ------------------------------------------------------------------------------

    def watch_stored(self, stored: dict[Any, Any]) -> None:
        """Read progress that is not committed yet from here, by its partition."""
        self._stored = stored

    def progress_stored(self, place: Any) -> None:
        """To be called just before the progress of `place` is added to what is watched."""
        if place not in self._stored:
            self._stored_at_ms[place] = self.now_ms()

    def commit_queued(self, outcome: asyncio.Future[None]) -> None:
        """The program commits; `outcome` is its future."""
        self._queued_at_ms[outcome] = self.now_ms()
        outcome.add_done_callback(self._committed)

    def _committed(self, outcome: asyncio.Future[None]) -> None:
        del self._queued_at_ms[outcome]
        word = _outcome_of_commit(outcome)
        self._counts.add((COMMITS, word))
        if word == _OK:
            self._committed_at_ms = self.now_ms()

    # --- reading ------------------------------------------------------------------------------

    def gauges(self, member: Observed) -> Iterator[tuple[str, float]]:
        """The present values of this member's gauges."""
        now_ms = self.now_ms()
        yield MEMBERS, 1
        yield IN_TROUBLE, int(bool(member.trouble))
        yield HELD, units_of(member.assignment)
        yield COMMIT_LAG, _seconds_since(self._oldest_uncommitted_ms(), now_ms) or 0.0
        for name, at_ms in ((HEARTBEAT_AGE, self._heartbeat_at_ms), (COMMIT_AGE, self._committed_at_ms)):
            if (age_s := _seconds_since(at_ms, now_ms)) is not None:
                yield name, age_s

    def _oldest_uncommitted_ms(self) -> int | None:
        stored_at_ms = self._stored_at_ms.copy()
        waiting = [stored_at_ms[place] for place in self._stored.copy() if place in stored_at_ms]
        return min((*waiting, *self._queued_at_ms.copy().values()), default=None)


class ClientStats:
    """The numbers of one client: of its members by group and kind, and of its other calls."""

    def __init__(self, namespace: str = "") -> None:
        self._lag: LoopLag | None = None
        self._counts: dict[Labels, Counts] = {}
        self._members: dict[MemberStats, weakref.ref[Any]] = {}
        self._groups: set[tuple[str, str]] = set()
        self._on_close: list[Callable[[ClientStats], None]] = []
        self._is_closed = False
        self.calls = CallStats(self.counts_of((namespace, "", "client")))
        """Of calls that no member makes."""

    def labels_of(self, namespace: str, group_id: str, kind: str) -> Labels:
        """The labels of a group's members; beyond `MOST_GROUPS` they are those of all further groups."""
        group = (namespace, group_id)
        if group not in self._groups and len(self._groups) >= MOST_GROUPS:
            return namespace, "", kind
        self._groups.add(group)
        return namespace, group_id, kind

    def counts_of(self, labels: Labels) -> Counts:
        return self._counts.setdefault(labels, Counts())

    def watch_loop(self, lag: LoopLag) -> None:
        """Show how late the client's event loop is."""
        self._lag = lag

    def begin(self, stats: MemberStats, member: Observed) -> None:
        self._members[stats] = weakref.ref(member, lambda _: self.end(stats))

    def end(self, stats: MemberStats) -> None:
        self._members.pop(stats, None)

    def on_close(self, act: Callable[[ClientStats], None]) -> None:
        """Call `act` when the client is closed, or at once where it is."""
        self._on_close.append(act)
        if self._is_closed:
            self.close()

    def close(self) -> None:
        """The client is closed."""
        self._is_closed = True
        while self._on_close:
            self._on_close.pop()(self)

    # --- reading ------------------------------------------------------------------------------

    def counters(self) -> Iterator[Sample]:
        """All that was counted so far. Any thread may ask."""
        for labels, counts in self._counts.copy().items():
            for (name, *own), count in counts.values().items():
                yield name, (*labels, *own), count

    def gauges(self) -> Iterator[Sample]:
        """The present values of what rises and falls. Any thread may ask."""
        if self._lag is not None:
            yield LOOP_LAG, (), self._lag.last_ms / 1000
            yield LOOP_LAG_MAX, (), self._lag.worst_ms / 1000
        for stats, reference in self._members.copy().items():
            if (member := reference()) is not None:
                for name, value in stats.gauges(member):
                    yield name, stats.labels, value


def _outcome_of_commit(outcome: asyncio.Future[None]) -> str:
    if outcome.cancelled():
        return _CANCELLED
    error = outcome.exception()
    if isinstance(error, CoordinatorUnreachable):
        return error.kind.value
    if type(error) is MembershipLost:
        return _NOT_HELD
    return error.code.value if isinstance(error, CoordinatorError) else _OK


def _seconds_since(at_ms: int | None, now_ms: int) -> float | None:
    return None if at_ms is None else max(0, now_ms - at_ms) / 1000
