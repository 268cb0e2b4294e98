"""What the runtime reports of itself: to metrics and logs, which implement `Telemetry`, and to traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rota.core.group.state import Result
from rota.core.replica.going_back import Setback
from rota.core.replica.owned_shard import Ready
from rota.core.replica.ports import JournalEvent
from rota.protocol.messages import GroupRequest, Request
from rota.protocol.tracing import Spans


class Telemetry:
    """Called on the event loop, after the fact; must not block. This one reports nothing."""

    def on_commit(self, lines: Mapping[int, Sequence[JournalEvent]], seconds: float) -> None:
        """One group commit took this long: these journal lines, by shard, are durable now."""

    def on_shard_loaded(self, shard_id: int, epoch: int, groups: int, seconds: float) -> None:
        """This replica owns the shard from here on."""

    def on_shard_dropped(self, shard_id: int, epoch: int, reason: str) -> None:
        """This replica stopped answering for the shard."""

    def on_forwarded(self, code: str) -> None:
        """A peer answered a forwarded call with this error code; UNREACHABLE where it did not answer."""

    def on_liveness_updates(self, members: int) -> None:
        """So many members were published to the liveness store."""

    def on_liveness_failed(self, operation: str) -> None:
        """The liveness store did not answer: `publish`, `ask`, `record`, `read` or `ping`."""

    def on_liveness_back(self) -> None:
        """The liveness store answers again."""

    def on_store_failed(self, operation: str) -> None:
        """The store did not answer: `commit` or `leases`."""

    def on_store_copied(self, shards: int) -> None:
        """This store is a copy of another one, in which replicas hold so many of its shards."""

    def on_store_went_back(self, setbacks: Sequence[Setback]) -> None:
        """The store went back to an earlier state: these shards have lost lines."""

    def on_expired(self, lateness_ms: int) -> None:
        """A member was expired, at most so long after its deadline."""

    def on_late_timer(self, lateness_ms: int) -> None:
        """The event loop was held up: timers rang this late, and sessions were given the time back."""


def traced_step(spans: Spans, request: Request, step: Callable[[], Ready]) -> tuple[Ready, Any]:
    """Decide a request within a span of its own, which has the decision and its reason. Returns what the commit that
    makes the decision durable is linked to, too; None if there is nothing to be linked.
    """
    with spans.within(f"decide {type(request).__name__}") as span:
        ready = step()
        span.note("rota.namespace", request.namespace)
        span.note("rota.group_id", request.group_id if isinstance(request, GroupRequest) else "")
        if ready.decided is None:
            return ready, None
        for name, value in _described(ready.decided).items():
            span.note(name, value)
        return ready, spans.here() if ready.decided.records else None


def _described(result: Result) -> dict[str, str | int | bool]:
    """The part of a decision that a span may carry: the generation, the reason, the kinds of the journal's lines, and
    the error of a rejected call; never a member's metadata or its assignment.
    """
    noted: dict[str, str | int | bool] = {"rota.reason": result.reason} if result.reason else {}
    if result.records:
        noted["rota.generation_id"] = result.records[-1].generation_id
        noted["rota.records"] = " ".join(entry.record.kind for entry in result.records)
    for _, reply in result.replies:
        noted["rota.code"] = reply.error.name
        generation_id = getattr(reply, "generation_id", None)
        if generation_id is not None:
            noted["rota.generation_id"] = generation_id
    if not result.replies:
        noted["rota.parked"] = True
    return noted
