"""One owned shard: commands in, results out, in the one order that is safe.

Everything about a shard happens on one event loop, one command after the other: the call of `submit` is the
mailbox. A result takes four steps, and their order is the whole point (architecture.md §1):

    1 its records and rows go to the store, in a transaction with whatever else is waiting (group commit);
    2 they count as the shard's state;
    3 its timers are set;
    4 its replies are released.

The core folds a record at once into memory that nobody outside can see, so that the next command of the same
batch is decided on top of it (ADR 0003). If step 1 fails or its outcome is unknown, steps 2 to 4 never happen: the
memory is thrown away with the host, and every call in it is answered with a retriable error.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rota.group.assignment_job import AssignmentJob
from rota.group.journal import encode_entry
from rota.group.records import Entry, MemberExpired, ShardAcquired, ShardReleased
from rota.group.result import Result, Timer, TimerKind
from rota.group.rows import ShardImage, SideCommit
from rota.group.shard import Shard
from rota.observability import tracing
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import Heartbeat, HeartbeatMany, Reply, Request, refuse
from rota.runtime.calls import Call, wait_ms
from rota.runtime.clock import Clock
from rota.runtime.decisions import described
from rota.runtime.ports import Answer, Heard, JournalEvent, ShardBatch, ShardClaim

logger = logging.getLogger(__name__)

NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
MOST_LINKS = 100
"""As many spans as a commit names; a batch may hold thousands of calls."""
GRACE_MS = 1_000
"""What a member gets at a take-over beside what it had left: its next heartbeat has to find the new owner."""


class _Held(NamedTuple):
    """Replies and timers that wait until the journal is durable up to `seq`."""

    seq: int
    replies: list[tuple[int, Reply]]
    timers: list[Timer]


class ShardHost:
    """A shard in memory with its claim. Lives from its loading until it is dropped; never comes back."""

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
        want_commit: Callable[[ShardHost], None],
        give_up: Callable[[ShardHost, str], None],
        on_events: Callable[[int, list[JournalEvent]], None],
        on_expired: Callable[[int], None],
        ask: Callable[[ShardHost, Timer], None] | None = None,
        assign: Callable[[ShardHost, Timer], None] | None = None,
        heard: Heard | None = None,
    ) -> None:
        self.claim = claim
        self._replica_id = replica_id
        self.lease_until_ms = lease_until_ms
        """By the monotonic clock, counted from before the claim was sent: earlier than the store's own."""
        self.dropped = False
        self.gone = asyncio.Event()
        """Set once it is dropped."""
        self._closed = False
        self._clock = clock
        self._set_timer = set_timer
        self._want_commit = want_commit
        self._give_up = give_up
        self._on_events = on_events
        self._on_expired = on_expired
        self._ask = ask
        """Asks the other replicas before a timer expires a member, then rings it with `ring_asked`."""
        self._assign = assign
        """Computes what a group leaves to the server, then hands it in with `finish_job`."""
        self._calls: dict[int, Call] = {}
        self._next_call = 1
        self._seq = image.last_seq
        self._durable_seq = image.last_seq
        self._events: list[JournalEvent] = []
        self._links: list[Any] = []
        self._held: deque[_Held] = deque()
        self.watchers: dict[tuple[str, str], set[asyncio.Queue[JournalEvent | None]]] = {}
        self.shard, loaded = Shard.load(image, limits, clock.now_ms())
        if heard is not None:
            loaded.timers += self._share_sessions(heard)
        acquired = ShardAcquired(replica_id, claim.epoch, "")
        loaded.records.append(Entry("", "", 0, loaded.now_ms, acquired))
        self._take(loaded)

    @property
    def shard_id(self) -> int:
        return self.claim.shard_id

    @property
    def durable_seq(self) -> int:
        return self._durable_seq

    @property
    def parked(self) -> int:
        return len(self._calls)

    # --- commands ------------------------------------------------------------------------------

    def submit(self, request: Request) -> Answer | Call:
        """Decide a request: its answer where that is known and durable, else the call that will have it."""
        if self._closed:
            return Answer(refuse(request, ErrorCode.NOT_COORDINATOR, "the shard moves to another replica"))
        if not self.may_answer():
            return Answer(refuse(request, NOT_AVAILABLE, "this replica's lease on the shard is over"))
        number, self._next_call = self._next_call, self._next_call + 1
        if tracing.spans is None:
            result = self._decide(lambda now_ms: self.shard.handle(request, number, now_ms))
        else:
            result = self._decide_traced(tracing.spans, request, number)
        if result is None:
            return Answer(refuse(request, NOT_AVAILABLE, "the shard is being loaded again"))
        if len(result.replies) == 1 and not result.records and self.is_settled() and result.replies[0][0] == number:
            self._set_timers(result.timers)
            return Answer(result.replies[0][1], self._seq, self.claim.epoch)
        call = self._calls[number] = Call(number, request, asyncio.get_running_loop().create_future())
        if all(answered != number for answered, _ in result.replies):
            self._park(call)
        self._take(result)
        return call

    def try_heartbeat(self, request: Heartbeat | HeartbeatMany) -> Answer | None:
        """The hot path: heartbeats that can be answered at once, without a future or a task."""
        if not self.is_settled() or (isinstance(request, Heartbeat) and request.wait_ms):
            return None
        answer = self.submit(request)
        return answer if isinstance(answer, Answer) else None

    def cancel(self, call: Call) -> None:
        """The client of a parked call is gone; its member stays until its session is over."""
        if self._calls.pop(call.number, None) is not None and not self.dropped:
            self._unpark(call, answer=False)

    def ring(self, timer: Timer) -> None:
        """A timer that one of our results asked for has rung."""
        if not self.may_answer() or self._closed:
            return
        if timer.kind is TimerKind.ASSIGN:
            if self._assign is not None:
                self._assign(self, timer)
        elif self._ask is not None and self.shard.session_is_over(timer, self._clock.now_ms()):
            self._ask(self, timer)
        else:
            self._ring_core(timer)

    def ring_asked(self, timer: Timer, heard_ms_ago: int | None) -> None:
        """The other replicas have been asked: this is when the last of them heard the member, None if nobody knows."""
        if not self.may_answer() or self._closed:
            return
        if heard_ms_ago is None:
            self._ring_core(timer)
        else:
            self._take(self._decide(lambda now_ms: self.shard.extend_session(timer, heard_ms_ago, now_ms)))

    def finish_job(self, job: AssignmentJob, outcome: Mapping[str, bytes] | str) -> bool:
        """Take in what the server assigned, see `Shard.finish_job`; False if the group is another by now."""
        if not self.may_answer() or self._closed or not self.shard.is_current(job):
            return False
        self._take(self._decide(lambda now_ms: self.shard.finish_job(job, outcome, now_ms)))
        return True

    def _ring_core(self, timer: Timer) -> None:
        result = self._decide(lambda now_ms: self.shard.on_timer(timer, now_ms))
        if result is not None:
            for entry in result.records:
                if entry.record.kind == MemberExpired.kind:
                    self._on_expired(result.now_ms - timer.at_ms)
        self._take(result)

    def sweep(self, empty_since_ms: int | None = None) -> None:
        """Expire offsets and what is empty; see `Shard.sweep`."""
        if self.may_answer():
            self._take(self._decide(lambda now_ms: self.shard.sweep(now_ms, empty_since_ms=empty_since_ms)[0]))

    def take_in(self, commits: Sequence[SideCommit]) -> None:
        """Learn what users' own transactions have committed; see `Shard.take_in`."""
        if self.may_answer() and not self._closed:
            self._take(self._decide(lambda now_ms: self.shard.take_in(commits, now_ms)))

    def close(self, reason: str) -> None:
        """Decide nothing more; what is decided still becomes durable and is answered.

        The last line says that the shard is let go, so that who reads the journal can tell it from a crash.
        """
        self._closed = True
        if self.may_answer():
            result = Result(self._clock.now_ms())
            released = ShardReleased(self._replica_id, self.claim.epoch, reason)
            result.records.append(Entry("", "", 0, result.now_ms, released))
            self._take(result)

    def is_settled(self) -> bool:
        """Everything that memory says is durable."""
        return self._seq == self._durable_seq

    def may_answer(self) -> bool:
        """Only while the lease cannot be over: after that, somebody else may know better."""
        return not self.dropped and self._clock.monotonic_ms() < self.lease_until_ms

    # --- the commit order ------------------------------------------------------------------------

    def take_links(self) -> list[Any]:
        """The spans of the calls that wait for the next batch, where somebody traces."""
        links, self._links = self._links, []
        return links

    def take_batch(self) -> ShardBatch:
        """Everything decided since the last batch. The rows say the state after the last of its events."""
        events, self._events = tuple(self._events), []
        return ShardBatch(self.shard_id, self.claim.epoch, events[0].seq, events, self.shard.rows())

    def committed(self, batch: ShardBatch) -> None:
        """Step 1 is done for this batch; now 2, 3 and 4, for it and for whatever waited for it."""
        if self.dropped:
            return
        self._durable_seq = batch.events[-1].seq
        self._tell_watchers(batch.events)
        self._on_events(self.shard_id, list(batch.events))
        while self._held and self._held[0].seq <= self._durable_seq:
            held = self._held.popleft()
            self._set_timers(held.timers)
            self._release(held.replies, held.seq)

    def drop(self, reason: str, code: ErrorCode = NOT_AVAILABLE, *, undecided: bool = False) -> None:
        """Throw the memory away: the store has, or may have, something else.

        Waiting calls are answered with `code`: `NOT_COORDINATOR` only where they are `undecided`.
        """
        if self.dropped:
            return
        self.dropped = True
        self.gone.set()
        self._held.clear()
        self._events.clear()
        self._answer_parked(reason, code, undecided=undecided)
        self.end_watches()

    def _answer_parked(self, reason: str, code: ErrorCode, *, undecided: bool) -> None:
        """Answer every waiting call with a retriable error, so that its client goes on elsewhere at once."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.finish(Answer(refuse(call.request, code, reason), undecided=undecided))

    def end_watches(self) -> None:
        """Tell whoever follows a group here that nothing more will come."""
        for queues in self.watchers.values():
            for queue in queues:
                queue.put_nowait(None)

    def _share_sessions(self, heard: Heard) -> list[Timer]:
        if heard.told_ms_ago is None:
            return self.shard.share_sessions({}, 0, self._clock.now_ms()).timers
        grace_ms = heard.told_ms_ago + GRACE_MS
        return self.shard.share_sessions(heard.heard_ms_ago, grace_ms, self._clock.now_ms()).timers

    def _decide(self, decide: Callable[[int], Result]) -> Result | None:
        """Let the core decide. A broken invariant costs the shard's memory, not the process: it is loaded again."""
        try:
            return decide(self._clock.now_ms())
        except Exception as error:
            logger.exception("the core broke an invariant", extra={"shard_id": self.shard_id})
            self._give_up(self, f"a broken invariant: {error!r}")
            return None

    def _decide_traced(self, spans: tracing.Spans, request: Request, number: int) -> Result | None:
        """What was decided for whom and why, and the commit that makes it durable is linked to this call."""
        with spans.within(f"decide {type(request).__name__}") as span:
            result = self._decide(lambda now_ms: self.shard.handle(request, number, now_ms))
            span.note("rota.namespace", request.namespace)
            span.note("rota.group_id", getattr(request, "group_id", ""))
            if result is not None:
                for name, value in described(result).items():
                    span.note(name, value)
                here = spans.here() if result.records else None
                if here is not None and len(self._links) < MOST_LINKS:
                    self._links.append(here)
            return result

    def _take(self, result: Result | None) -> None:
        if result is None:
            return
        for entry in result.records:
            self._seq += 1
            self._events.append(JournalEvent(seq=self._seq, epoch=self.claim.epoch, **encode_entry(entry)))
        if result.records:
            self._want_commit(self)
        if self.is_settled():
            self._set_timers(result.timers)
            self._release(result.replies, self._seq)
        elif result.replies or result.timers:
            # Not its own facts alone: a reply also shows those that others are still waiting for.
            self._held.append(_Held(self._seq, result.replies, result.timers))

    def _release(self, replies: list[tuple[int, Reply]], seq: int) -> None:
        """Answer as of `seq`: in one transaction there may be later lines, of which these replies say nothing."""
        for number, reply in replies:
            call = self._calls.pop(number, None)
            if call is not None:
                call.finish(Answer(reply, seq, self.claim.epoch) if self.may_answer() else self._too_late(call))

    def _too_late(self, call: Call) -> Answer:
        return Answer(refuse(call.request, NOT_AVAILABLE, "this replica's lease on the shard is over"))

    def _set_timers(self, timers: list[Timer]) -> None:
        for timer in timers:
            self._set_timer(timer, self.ring)

    # --- parked calls ------------------------------------------------------------------------------

    def _park(self, call: Call) -> None:
        delay_s = wait_ms(call.request, self.shard) / 1000
        call.timer = asyncio.get_running_loop().call_later(delay_s, self._unpark_and_answer, call)

    def _unpark_and_answer(self, call: Call) -> None:
        if call.number in self._calls and not self.dropped:
            self._unpark(call, answer=True)

    def _unpark(self, call: Call, *, answer: bool) -> None:
        self._take(self._decide(lambda now_ms: self.shard.unpark(call.request, call.number, now_ms, answer=answer)))

    def _tell_watchers(self, events: tuple[JournalEvent, ...]) -> None:
        for event in events:
            for queue in self.watchers.get((event.namespace, event.group_id), ()):
                queue.put_nowait(event)
