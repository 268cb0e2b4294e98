"""The shell of one owned shard: futures, timers, watchers and spans around `rota.replica.owned_shard`.

Everything about a shard happens on one event loop, one step after the other: the call of `submit` is the mailbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from rota.group.assignment import AssignmentJob
from rota.group.records import MemberExpired
from rota.group.rows import ShardImage, SideCommit
from rota.group.sessions import MemberName
from rota.group.shard import Lost, Shard
from rota.group.state import Result, Timer
from rota.observability import tracing
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import GetLeader, GroupRequest, Heartbeat, HeartbeatMany, Request, VerifyFence
from rota.replica.owned_shard import NOT_AVAILABLE, NOTHING, Now, OwnedShard, Ready
from rota.replica.ports import Answer, JournalEvent, SeenMembers, ShardBatch, ShardClaim
from rota.runtime.clock import Clock
from rota.runtime.parking import Line, Parking

logger = logging.getLogger(__name__)

MOST_LINKS = 100
"""As many spans as a commit names; a batch may hold thousands of calls."""
BACKLOG = 10_000
"""A watcher that falls further behind than this is cut off, and resumes by revision."""
ANSWERS_OF_A_TURN = 500
"""Some 8 ms' worth. With all answers of a busy moment in one turn, a renewal of the leases would come too late."""


Done = Callable[[Answer], None]
"""Gets the answer to a call."""


class Call:
    """One request. `done` gets the answer.

    While it waits for its reply, `host` knows it by `number`. While it is parked, it stands in `line`.
    """

    __slots__ = ("done", "host", "line", "number")

    def __init__(self, done: Done) -> None:
        self.done = done
        self.host: ShardHost | None = None
        self.line: Line | None = None
        self.number = 0

    def answered(self, answer: Answer) -> None:
        """Called once, unless the call is cancelled before."""
        self.done(answer)

    def cancel(self) -> None:
        """Its client is gone."""
        if self.host is not None:
            self.host.cancel(self)


class Answers:
    """Gives the answers of all shards of a replica to the callers, in the order in which they became known.

    In turns of the event loop of their own, so many in each: an error of a caller's is none of a shard.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Call, Answer]] = deque()
        self._is_due = False
        """Whether a turn comes in which some of them are given."""

    def give(self, answered: Iterable[tuple[Call, Answer]]) -> None:
        """Soon, behind those that were given before."""
        self._waiting.extend(answered)
        self._look_soon()

    def _give_some(self) -> None:
        """Each answer to its caller, whatever becomes of the others."""
        self._is_due = False
        for _ in range(min(len(self._waiting), ANSWERS_OF_A_TURN)):
            call, answer = self._waiting.popleft()
            try:
                call.answered(answer)
            except Exception as error:
                context = {"message": "a caller failed at its answer", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
        self._look_soon()

    def _look_soon(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._give_some)


class _Due:
    """Fires a host's timers. They stay set when it is dropped, for as long as sessions last, and do not keep it."""

    __slots__ = ("host",)

    def __init__(self, host: ShardHost) -> None:
        self.host: ShardHost | None = host
        """None once it is dropped."""

    def __call__(self, timer: Timer) -> None:
        if self.host is not None:
            self.host.fire(timer)


class ShardHost:
    """Carries out what an owned shard decides. Lives from its loading until it is dropped; never comes back."""

    def __init__(
        self,
        claim: ShardClaim,
        image: ShardImage,
        limits: Limits,
        clock: Clock,
        *,
        replica_id: str,
        lease_until_ms: int,
        set_timer: Callable[[Timer, Callable[[Timer], None]], None],
        give: Callable[[Iterable[tuple[Call, Answer]]], None],
        want_commit: Callable[[ShardHost], None],
        give_up: Callable[[ShardHost, str], None],
        on_events: Callable[[int, list[JournalEvent]], None],
        on_expired: Callable[[int], None],
        ask: Callable[[ShardHost, Timer], None],
        forget: Callable[[int, Sequence[MemberName]], None] | None = None,
        assign: Callable[[ShardHost, Timer], None] | None = None,
        lost: Lost | None = None,
        seen: SeenMembers | None = None,
    ) -> None:
        self.gone = asyncio.Event()
        """Set once it is dropped."""
        self._now = clock.now
        self._set_timer = set_timer
        self._give = give
        """See `Answers.give`."""
        self._want_commit = want_commit
        self._give_up = give_up
        self._on_events = on_events
        self._on_expired = on_expired
        self._ask = ask
        """Has what was received read before a timer removes members, then fires it with `fire_asked`."""
        self._forget = forget
        """Has the other replicas forget members that are gone."""
        self._assign = assign
        """Computes what a group leaves to the server, then hands it in with `finish_job`."""
        self._calls: dict[int, Call] = {}
        self._due = _Due(self)
        self._parking = Parking(self._unpark)
        self._next_call = 1
        self._links: list[Any] = []
        self.watchers: dict[tuple[str, str], set[asyncio.Queue[JournalEvent | None]]] = {}
        self.owned, loaded = OwnedShard.load(
            claim,
            image,
            limits,
            self._now(),
            replica_id=replica_id,
            lease_until_ms=lease_until_ms,
            seen=seen,
            lost=lost,
        )
        self._carry_out(loaded)

    @property
    def claim(self) -> ShardClaim:
        return self.owned.claim

    @property
    def shard(self) -> Shard:
        return self.owned.shard

    @property
    def shard_id(self) -> int:
        return self.owned.claim.shard_id

    @property
    def durable_seq(self) -> int:
        return self.owned.durable_seq

    @property
    def dropped(self) -> bool:
        return self.owned.is_dropped

    @property
    def lease_until_ms(self) -> int:
        """By the monotonic clock, counted from before the claim was sent: earlier than the store's own."""
        return self.owned.lease_until_ms

    @lease_until_ms.setter
    def lease_until_ms(self, until_ms: int) -> None:
        self.owned.lease_until_ms = until_ms

    @property
    def parked(self) -> int:
        return self.owned.waiting

    def is_settled(self) -> bool:
        """Everything that memory says is durable."""
        return self.owned.is_durable

    def may_answer(self) -> bool:
        """Only while the lease cannot be over."""
        return self.owned.may_answer(self._now())

    # --- requests and time -----------------------------------------------------------------------

    def submit(self, request: Request, call: Call) -> Answer | None:
        """Decide a request: its answer where that is known and durable, else `call` gets it in a turn of the event loop
        of its own.
        """
        number, self._next_call = self._next_call, self._next_call + 1
        ready: Ready | None
        if tracing.spans is None:
            try:
                ready = self.owned.submit(number, request, self._now())
            except Exception as error:
                self._broke(error)
                ready = None
        else:
            ready = self._submit_traced(tracing.spans, request, number)
        if ready is None:
            return Answer(refuse(request, NOT_AVAILABLE, "the shard is being loaded again"))
        if len(ready.replies) == 1 and ready.replies[0][0] == number:
            self._set_timers(ready.timers)
            return ready.replies[0][1]
        self._calls[number] = call
        call.host, call.number = self, number
        if ready.parks_ms is not None:
            call.line = self._parking.park(number, ready.parks_ms)
        self._carry_out(ready)
        return None

    def try_heartbeat(self, request: Heartbeat | HeartbeatMany) -> Answer | None:
        """The hot path: heartbeats that can be answered at once, without a future or a task."""
        if tracing.spans is not None or (isinstance(request, Heartbeat) and request.wait_ms):
            return None
        number, self._next_call = self._next_call, self._next_call + 1
        try:
            answer = self.owned.try_heartbeat(number, request, self._now())
        except Exception as error:
            self._broke(error)
            return None
        if not isinstance(answer, Ready):
            return answer
        self._carry_out(answer)
        return next((reply for answered, reply in answer.replies if answered == number), None)

    def try_read(self, request: VerifyFence | GetLeader) -> Answer | None:
        """The same for calls that change nothing, do not wait, and need nothing from the store."""
        if tracing.spans is not None:
            return None
        number, self._next_call = self._next_call, self._next_call + 1
        try:
            return self.owned.try_read(number, request, self._now())
        except Exception as error:
            self._broke(error)
            return None

    def cancel(self, call: Call) -> None:
        """See `Call.cancel`."""
        if self._calls.pop(call.number, None) is not None:
            if call.line is not None:
                self._parking.leave(call.line, call.number)
            self._carry_out(self._step(lambda now: self.owned.hang_up(call.number, now)))

    def fire(self, timer: Timer) -> None:
        """A timer that one of our results asked for is due."""
        self._fire(timer, lambda now: self.owned.on_timer(timer, now))

    def fire_asked(self, timer: Timer, seen_ms_ago: int | None) -> None:
        """All that was received is read, and the other replicas were asked: see `OwnedShard.others_answered`."""
        self._fire(timer, lambda now: self.owned.others_answered(timer, seen_ms_ago, now))

    def finish_job(self, job: AssignmentJob, outcome: Mapping[str, bytes] | str) -> bool:
        """Take what the server assigned, see `Shard.finish_job`; False if the group is another by now."""
        ready = self._step(lambda now: self.owned.finish_job(job, outcome, now))
        self._carry_out(ready)
        return ready is not None

    def sweep(self, empty_since_ms: int | None = None) -> None:
        """Expire offsets and empty groups; see `Shard.sweep`."""
        self._carry_out(self._step(lambda now: self.owned.sweep(now, empty_since_ms)))

    def take_in(self, commits: Sequence[SideCommit]) -> None:
        """Learn what users' own transactions have committed; see `Shard.take_in`."""
        self._carry_out(self._step(lambda now: self.owned.take_in(commits, now)))

    def raise_generations(self, floor: int) -> None:
        """Grant no generation up to `floor` any more; see `OwnedShard.raise_generations`."""
        self._carry_out(self._step(lambda now: self.owned.raise_generations(floor, now)))

    def close(self, reason: str) -> None:
        """Decide nothing more; earlier decisions still become durable and are answered."""
        self._carry_out(self.owned.close(reason, self._now()))

    # --- the commit order ------------------------------------------------------------------------

    def take_links(self) -> list[Any]:
        """The spans of the calls that wait for the next batch, where spans are collected."""
        links, self._links = self._links, []
        return links

    def committed(self, batch: ShardBatch, ready: Ready) -> None:
        """The batch is durable: its events are published, and what waited for it goes out."""
        self._notify_watchers(batch.events)
        self._on_events(self.shard_id, list(batch.events))
        self._carry_out(ready)

    def drop(self, reason: str, code: ErrorCode = NOT_AVAILABLE, *, undecided: bool = False) -> None:
        """Throw the memory away: the store has, or may have, something else. See `OwnedShard.drop`."""
        if self.dropped:
            return
        refusals = self.owned.drop(reason, code, undecided=undecided)
        self.gone.set()
        self._due.host = None
        self._parking.stop()
        self._carry_out(refusals)
        self.end_watches()

    def end_watches(self) -> None:
        """End all watches of groups here."""
        for queues in self.watchers.values():
            for queue in queues:
                queue.put_nowait(None)

    # --- inside ----------------------------------------------------------------------------------

    def _step(self, step: Callable[[Now], Ready | None]) -> Ready | None:
        """Let the shard decide. A broken invariant costs the shard's memory, not the process: it is loaded again."""
        try:
            return step(self._now())
        except Exception as error:
            self._broke(error)
            return None

    def _broke(self, error: Exception) -> None:
        logger.error("the core broke an invariant", exc_info=error, extra={"shard_id": self.shard_id})
        self._give_up(self, f"a broken invariant: {error!r}")

    def _submit_traced(self, spans: tracing.Spans, request: Request, number: int) -> Ready | None:
        """The span has the decision and its reason; the span of the commit that makes it durable is linked to it."""
        with spans.within(f"decide {type(request).__name__}") as span:
            ready = self._step(partial(self.owned.submit, number, request))
            span.note("rota.namespace", request.namespace)
            span.note("rota.group_id", request.group_id if isinstance(request, GroupRequest) else "")
            if ready is not None and ready.decided is not None:
                for name, value in _described(ready.decided).items():
                    span.note(name, value)
                here = spans.here() if ready.appends else None
                if here is not None and len(self._links) < MOST_LINKS:
                    self._links.append(here)
            return ready

    def _fire(self, timer: Timer, step: Callable[[Now], Ready]) -> None:
        ready = self._step(step)
        if ready is not None and ready.decided is not None:
            for entry in ready.decided.records:
                if entry.record.kind == MemberExpired.kind:
                    self._on_expired(ready.decided.now_ms - timer.at_ms)
        self._carry_out(ready)

    def _carry_out(self, ready: Ready | None) -> None:
        if ready is None or ready is NOTHING:
            return
        if ready.decided is not None and ready.decided.warning:
            logger.warning("%s", ready.decided.warning, extra={"shard_id": self.shard_id})
        if ready.appends:
            self._want_commit(self)
        self._set_timers(ready.timers)
        if ready.replies:
            self._answer(ready.replies)
        if ready.asks is not None:
            self._ask(self, ready.asks)
        if ready.gone and self._forget is not None:
            self._forget(self.shard_id, ready.gone)
        if ready.assigns is not None and self._assign is not None:
            self._assign(self, ready.assigns)

    def _answer(self, replies: Sequence[tuple[int, Answer]]) -> None:
        answered: list[tuple[Call, Answer]] = []
        for number, answer in replies:
            call = self._calls.pop(number, None)
            if call is not None:
                if call.line is not None:
                    self._parking.leave(call.line, number)
                answered.append((call, answer))
        if not self._calls:
            self._calls.clear()  # which frees its table
        self._give(answered)

    def _set_timers(self, timers: Sequence[Timer]) -> None:
        for timer in timers:
            self._set_timer(timer, self._due)

    def _unpark(self, number: int) -> None:
        self._carry_out(self._step(lambda now: self.owned.unpark(number, now)))

    def _notify_watchers(self, events: tuple[JournalEvent, ...]) -> None:
        if not self.watchers:
            return
        for event in events:
            watchers = self.watchers.get((event.namespace, event.group_id), set())
            for queue in tuple(watchers):
                if queue.qsize() >= BACKLOG:  # Its client does not read: it would keep all lines to come in memory.
                    watchers.discard(queue)
                    while not queue.empty():
                        queue.get_nowait()
                queue.put_nowait(event if queue in watchers else None)


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
