"""The loop of a replica's shards: take an input, step the shard, append what it decided, then answer.

An input is a request, a timer, a client that hangs up, an assignment, or a side commit. Each is a call of one method
here, which steps its shard at once, so the call is the shard's mailbox. The step returns a `Ready`: what may leave at
once leaves (`_hand_out`), what has to be durable before waits. `run` takes what all shards have decided since the last
append, appends it in one transaction, and then hands out what waited for it: first the journal's lines, to those that
follow them, then timers and answers.

Everything happens on one event loop. A shard is dropped when its memory may not be trusted any more: a broken
invariant, an append that was refused, or one whose outcome is unknown. `rota.server.runtime.ownership` claims it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any

from rota.core.group.assignment import AssignmentJob
from rota.core.group.records import Entry, MemberExpired
from rota.core.group.state import Timer, TimerKind
from rota.core.replica.assigning import Assigning
from rota.core.replica.leases import Leases
from rota.core.replica.owned_shard import (
    APPEND_LATEST_MS,
    NOT_AVAILABLE,
    SWEEP_INTERVAL_MS,
    TAKE_IN_INTERVAL_MS,
    Now,
    OwnedShard,
    Ready,
    journal_lines,
)
from rota.core.replica.ports import Answer, JournalEvent, ShardBatch, ShardClaim, ShardStore, StoreUnavailable
from rota.protocol import tracing
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import GetLeader, Heartbeat, HeartbeatMany, Request, VerifyFence
from rota.server.runtime.clock import BATCH, Clock, TimerQueue
from rota.server.runtime.sessions import SharedSessions
from rota.server.runtime.telemetry import Telemetry, traced_step

logger = logging.getLogger(__name__)

MOST_LINKS = 100
"""As many spans as a commit names; a batch may hold thousands of calls."""
BACKLOG = 10_000
"""A watcher that falls further behind than this is cut off, and resumes by revision."""
ANSWERS_OF_A_TURN = 500
"""Some 8 ms' worth. With all answers of a busy moment in one turn, a renewal of the leases would come too late."""
READS = 6
READ_S = 0.005
"""In each pause the event loop reads its sockets at least once, and gRPC's threads run. A new connection takes two: one
to be accepted, and one to be read. A message over gRPC, or one that another replica forwards, takes a few. In a process
that gets little CPU the pauses are as much longer as its threads wait."""

ALL_TOPICS = ("", "")
"""Listeners of this key get the lines of topics, of all namespaces."""
Listener = Callable[[Sequence[JournalEvent]], None]
"""Gets lines of one group, in order: if its shard is here, all of one transaction together."""


class Call:
    """One request, and what gets its answer. While it waits, it has the loop's number; while it parks, a timer."""

    __slots__ = ("done", "loop", "number", "owned", "parked")

    def __init__(self, done: Callable[[Answer], None]) -> None:
        self.done = done
        self.loop: ShardLoop | None = None
        """The loop sets it if the call waits; it is None if the call was answered at once."""
        self.owned: OwnedShard | None = None
        """The shard that decides it; None if the call was answered at once."""
        self.number = 0
        self.parked: asyncio.TimerHandle | None = None
        """Ends the wait of a call that parks."""

    def answered(self, answer: Answer) -> None:
        """Called once, unless the call is cancelled before."""
        self.done(answer)

    def cancel(self) -> None:
        """Its client is gone."""
        if self.loop is not None:
            self.loop.cancel(self)


class ServedShard:
    """A shard in memory, and those that follow it. Lives from its loading until it is dropped; never comes back."""

    __slots__ = ("appends_late", "asking_again", "gone", "links", "notified_seq", "owned", "watchers")

    def __init__(self, owned: OwnedShard) -> None:
        self.owned = owned
        self.gone = asyncio.Event()
        """Set once it is dropped."""
        self.links: list[Any] = []
        """The spans of the calls that wait for the next append, if spans are collected."""
        self.appends_late = False
        """Whether its unsettled lines are to be appended after `APPEND_LATEST_MS`, if they were not before."""
        self.notified_seq = 0
        """The last line that listeners were notified of: unsettled ones before they are durable."""
        self.watchers: dict[tuple[str, str], set[asyncio.Queue[JournalEvent | None]]] = {}
        """By namespace and group, queues for durable lines; None ends a queue."""
        self.asking_again = asyncio.Lock()
        """Held by the one of the callers that wait for a change which looks at it in this turn of the loop."""

    def end_watches(self) -> None:
        """End all watches of groups here."""
        for queues in self.watchers.values():
            for queue in queues:
                queue.put_nowait(None)


class ShardLoop:
    """The shards that this replica serves. Each of its methods `run…` is a task of its owner."""

    def __init__(
        self, store: ShardStore, clock: Clock, telemetry: Telemetry, leases: Leases, sessions: SharedSessions | None
    ) -> None:
        """`sessions` are shared by all replicas; None: this replica alone knows when it has seen its members."""
        self.store = store
        self.clock = clock
        self.leases = leases
        self.shards: dict[int, ServedShard] = {}
        """By id."""
        self.subscriptions = Subscriptions()
        self.assigning = Assigning()
        self.assigning_changed = asyncio.Event()
        """Set when `assigning` has something new to do."""
        self.round_due = asyncio.Event()
        """Set when there is a reason for a round of the leases: a shard was given up, and is to be claimed again."""
        self.telemetry = telemetry
        self.sessions = sessions
        self._calls: dict[int, Call] = {}
        """The calls that wait for their answers, by number."""
        self._next_call = 1
        self._answers = Answers()
        self._timers: TimerQueue[ShardClaim] = TimerQueue(clock, telemetry.on_late_timer)
        self._timers_changed = asyncio.Event()
        self._expiring: list[tuple[OwnedShard, Timer]] = []
        """Timers that would remove silent members, before all that was received is read."""
        self._is_expiring = asyncio.Event()
        self._to_append: dict[OwnedShard, None] = {}
        """Shards with entries for the next transaction, as an ordered set."""
        self._to_read: list[tuple[OwnedShard, asyncio.Future[bool]]] = []
        """Shards whose side commits are asked for, each with the future that says whether they are known."""
        self._has_ended = False
        self._work = asyncio.Event()
        """Set when something waits for the store."""
        self._idle = asyncio.Event()
        self._idle.set()

    # --- inputs: requests ------------------------------------------------------------------------

    def submit(self, owned: OwnedShard, request: Request, call: Call) -> Answer | None:
        """Decide a request: its answer if that is known and durable, else `call` gets it in a later turn."""
        number, self._next_call = self._next_call, self._next_call + 1
        ready: Ready | None
        if tracing.spans is None:
            try:
                ready = owned.submit(number, request, self.clock.now())
            except Exception as error:
                self._broke(owned, error)
                ready = None
        else:
            ready = self._submit_traced(tracing.spans, owned, request, number)
        if ready is None:
            return Answer(refuse(request, NOT_AVAILABLE, "the shard is being loaded again"))
        if len(ready.replies) == 1 and ready.replies[0][0] == number:
            answer = ready.replies[0][1]
            ready.replies = ()
            self._hand_out(owned, ready)
            return answer
        self._calls[number] = call
        call.loop, call.owned, call.number = self, owned, number
        if ready.parks_ms is not None:
            call.parked = asyncio.get_running_loop().call_later(ready.parks_ms / 1000, self._unpark, number)
        self._hand_out(owned, ready)
        return None

    def try_heartbeat(self, shard_id: int, request: Heartbeat | HeartbeatMany) -> Answer | None:
        """The hot path: heartbeats that can be answered at once, without a future or a task."""
        shard = self.shards.get(shard_id)
        if shard is None or tracing.spans is not None or (isinstance(request, Heartbeat) and request.wait_ms):
            return None
        owned = shard.owned
        number, self._next_call = self._next_call, self._next_call + 1
        try:
            answer = owned.try_heartbeat(number, request, self.clock.now())
        except Exception as error:
            self._broke(owned, error)
            return None
        if not isinstance(answer, Ready):
            return answer
        self._hand_out(owned, answer)
        return next((reply for answered, reply in answer.replies if answered == number), None)

    def try_read(self, shard_id: int, request: VerifyFence | GetLeader) -> Answer | None:
        """The same for calls that change nothing, do not wait, and need nothing from the store."""
        shard = self.shards.get(shard_id)
        if shard is None or tracing.spans is not None:
            return None
        number, self._next_call = self._next_call, self._next_call + 1
        try:
            return shard.owned.try_read(number, request, self.clock.now())
        except Exception as error:
            self._broke(shard.owned, error)
            return None

    async def ask(self, owned: OwnedShard, request: Request) -> Answer:
        """The answer to a request; cancelling this cancels the request."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        call = Call(partial(_settle, answered))
        answer = self.submit(owned, request, call)
        if answer is not None:
            return answer
        try:
            return await answered
        except asyncio.CancelledError:
            call.cancel()
            raise

    def cancel(self, call: Call) -> None:
        """See `Call.cancel`."""
        owned = call.owned
        if self._calls.pop(call.number, None) is not None and owned is not None:
            if call.parked is not None:
                call.parked.cancel()
            self._step(owned, lambda now: owned.hang_up(call.number, now))

    def _unpark(self, number: int) -> None:
        call = self._calls.get(number)
        owned = call.owned if call is not None else None
        if owned is not None:
            self._step(owned, lambda now: owned.unpark(number, now))

    # --- inputs: time ----------------------------------------------------------------------------

    async def run_timers(self) -> None:
        """Step the shards whose timers are due, and sleep until the next one is."""
        while True:
            self._timers_changed.clear()
            delay_ms = self._timers.delay_ms()
            if delay_ms > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay_ms / 1000):
                        await self._timers_changed.wait()
            else:
                self._fire_due()
                await asyncio.sleep(0)

    def _fire_due(self) -> None:
        for claim, timer in self._timers.due():
            # A timer stays in the queue when its shard is dropped, for as long as sessions last.
            shard = self.shards.get(claim.shard_id)
            if shard is not None and shard.owned.claim is claim:
                self._fire(shard.owned, timer, partial(shard.owned.on_timer, timer))

    async def run_expiries(self) -> None:
        """Fire timers that would remove silent members once all that was received before is read.

        A busy or paused event loop finds its timers due before it reads its sockets. A heartbeat that arrived in time
        may wait there for as long as a turn of the loop takes, which can be seconds.
        """
        while True:
            await self._is_expiring.wait()
            self._is_expiring.clear()
            await self._expire_silent()

    async def _expire_silent(self) -> None:
        expiring, self._expiring = self._expiring, []
        for _ in range(READS):
            await asyncio.sleep(READ_S)
        timers = [(owned.shard_id, timer) for owned, timer in expiring if timer.kind is TimerKind.SESSION]
        seen = await self.sessions.ask_others(timers) if self.sessions and timers else [None] * len(timers)
        seen_ms_ago = dict(zip(timers, seen, strict=True))
        for number, (owned, timer) in enumerate(expiring, 1):
            ago_ms = seen_ms_ago.get((owned.shard_id, timer))
            self._fire(owned, timer, partial(owned.others_answered, timer, ago_ms))
            if number % BATCH == 0:
                await asyncio.sleep(0)

    def _fire(self, owned: OwnedShard, timer: Timer, step: Callable[[Now], Ready]) -> None:
        ready = self._step(owned, step)
        if ready is not None and ready.decided is not None:
            for entry in ready.decided.records:
                if entry.record.kind == MemberExpired.kind:
                    self.telemetry.on_expired(ready.decided.now_ms - timer.at_ms)

    async def run_upkeep(self) -> None:
        """Expire offsets and empty groups, and take in what users' own transactions commit, now and then."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_sweeping())
            if self.store.has_side_door:
                tasks.create_task(self._keep_taking_in())

    async def _keep_taking_in(self) -> None:
        """Bring commits of users' own transactions into the journal, also while no call needs them."""
        while True:
            await asyncio.sleep(TAKE_IN_INTERVAL_MS / 1_000)
            await asyncio.gather(*(self.take_in(shard.owned) for shard in self.shards.values()))

    async def _keep_sweeping(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_MS / 1_000)
            await self.sweep_all()

    async def sweep_all(self) -> None:
        """Expire offsets and empty groups, in every shard that is here; see `Shard.sweep`."""
        for shard in list(self.shards.values()):
            owned, began_ms = shard.owned, self.clock.now_ms()
            if not self.store.has_side_door:
                self._step(owned, owned.sweep)
                await asyncio.sleep(0)
            elif await self.take_in(owned):
                self._step(owned, partial(owned.sweep, empty_since_ms=began_ms))

    # --- inputs: what others have computed or decided --------------------------------------------

    def finish_job(self, owned: OwnedShard, job: AssignmentJob, outcome: Mapping[str, bytes] | str) -> bool:
        """Take what the server assigned, see `Shard.finish_job`; False if the group is another by now."""
        return self._step(owned, lambda now: owned.finish_job(job, outcome, now)) is not None

    async def take_in(self, owned: OwnedShard) -> bool:
        """Return once the shard knows what users' own transactions have committed until now.

        By then, what it had decided before this call is durable, too. False if the store does not answer.
        """
        if self._has_ended:
            return False
        known: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._to_read.append((owned, known))
        self._wait_for_store()
        return await known

    def raise_generations(self, owned: OwnedShard, floor: int) -> None:
        """Grant no generation up to `floor` any more; see `OwnedShard.raise_generations`."""
        self._step(owned, lambda now: owned.raise_generations(floor, now))

    # --- inputs: ownership -----------------------------------------------------------------------

    def serve(self, owned: OwnedShard, loaded: Ready) -> ServedShard:
        """Serve a shard that was loaded."""
        shard = self.shards[owned.shard_id] = ServedShard(owned)
        self.leases.install(owned)
        self._hand_out(owned, loaded)
        return shard

    def close(self, owned: OwnedShard, reason: str) -> None:
        """Decide nothing more in this shard; earlier decisions still become durable and are answered."""
        self._step(owned, lambda now: owned.close(reason, now))

    def give_up(self, owned: OwnedShard, reason: str) -> None:
        """Stop answering for a shard because its memory cannot be trusted; it is claimed and loaded again."""
        if not owned.is_dropped:
            logger.warning("shard dropped", extra={"shard_id": owned.shard_id, "reason": reason})
            self.telemetry.on_shard_dropped(owned.shard_id, owned.epoch, reason)
            self.drop(owned, reason)
        self.round_due.set()

    def drop(self, owned: OwnedShard, reason: str, code: ErrorCode = NOT_AVAILABLE, *, undecided: bool = False) -> None:
        """Throw the memory away: the store has, or may have, something else. See `OwnedShard.drop`."""
        if owned.is_dropped:
            return
        shard = self.shards.pop(owned.shard_id)
        self.leases.remove(owned)
        refusals = owned.drop(reason, code, undecided=undecided)
        shard.gone.set()
        self._hand_out(owned, refusals)
        shard.end_watches()

    # --- step ------------------------------------------------------------------------------------

    def _step(self, owned: OwnedShard, step: Callable[[Now], Ready | None]) -> Ready | None:
        """Let the shard decide. A broken invariant costs the shard's memory, not the process: it is loaded again."""
        try:
            ready = step(self.clock.now())
        except Exception as error:
            self._broke(owned, error)
            return None
        if ready is not None:
            self._hand_out(owned, ready)
        return ready

    def _submit_traced(self, spans: tracing.Spans, owned: OwnedShard, request: Request, number: int) -> Ready | None:
        """The span of the commit that makes a decision durable is linked to the span of the decision."""
        shard = self.shards.get(owned.shard_id)
        try:
            ready, here = traced_step(spans, request, lambda: owned.submit(number, request, self.clock.now()))
        except Exception as error:
            self._broke(owned, error)
            return None
        if here is not None and shard is not None and len(shard.links) < MOST_LINKS:
            shard.links.append(here)
        return ready

    def _broke(self, owned: OwnedShard, error: Exception) -> None:
        logger.error("the core broke an invariant", exc_info=error, extra={"shard_id": owned.shard_id})
        self.give_up(owned, f"a broken invariant: {error!r}")

    def _hand_out(self, owned: OwnedShard, ready: Ready) -> None:
        """Do what a step asks for. See `Ready` for what is durable by now."""
        if ready.decided is not None and ready.decided.warning:
            logger.warning("%s", ready.decided.warning, extra={"shard_id": owned.shard_id})
        if ready.appends:
            self._append_soon(owned)
        if ready.unsettled:
            self._hand_out_unsettled(owned, ready.unsettled)
        self._set_timers(owned, ready.timers)
        if ready.replies:
            answered: list[tuple[Call, Answer]] = []
            for number, answer in ready.replies:
                call = self._calls.pop(number, None)
                if call is not None:
                    if call.parked is not None:
                        call.parked.cancel()
                    answered.append((call, answer))
            if not self._calls:
                self._calls.clear()  # which frees its table
            self._answers.give(answered)
        if ready.asks is not None:
            self._expiring.append((owned, ready.asks))
            self._is_expiring.set()
        if ready.gone and self.sessions is not None:
            self.sessions.forget(owned.shard_id, ready.gone)
        if ready.assigns is not None:
            self.assigning.want(owned, ready.assigns, self.clock.monotonic_ms())
            self.assigning_changed.set()

    def _hand_out_unsettled(self, owned: OwnedShard, entries: Sequence[tuple[int, Entry]]) -> None:
        """Notify listeners of lines that nothing waits for, so that members rejoin at once; see that they are appended.

        Watchers get durable lines alone: the lines of a group that is watched do not wait for a later append.
        """
        shard = self.shards[owned.claim.shard_id]
        if any((entry.namespace, entry.group_id) in shard.watchers for _, entry in entries):
            self._append_soon(owned)
        elif owned.has_entries and not shard.appends_late:
            shard.appends_late = True
            asyncio.get_running_loop().call_later(APPEND_LATEST_MS / 1000, self._append_late, owned.claim)
        new = [each for each in entries if each[0] > shard.notified_seq and self.subscriptions.follows(each[1])]
        if new:
            self.subscriptions.notify(journal_lines(new, owned.claim.epoch))
        shard.notified_seq = max(shard.notified_seq, entries[-1][0])

    def _append_late(self, claim: ShardClaim) -> None:
        shard = self.shards.get(claim.shard_id)
        if shard is not None and shard.owned.claim is claim:
            shard.appends_late = False
            self._append_soon(shard.owned)

    def _set_timers(self, owned: OwnedShard, timers: Sequence[Timer]) -> None:
        for timer in timers:
            if self._timers.set(timer, owned.claim):
                self._timers_changed.set()

    def _append_soon(self, owned: OwnedShard) -> None:
        self._to_append[owned] = None
        self._wait_for_store()

    def _wait_for_store(self) -> None:
        self._idle.clear()
        self._work.set()

    # --- append, then reply ----------------------------------------------------------------------

    async def run(self) -> None:
        """Append what the shards have decided, one transaction at a time, and hand out what waited for it."""
        to_read: list[tuple[OwnedShard, asyncio.Future[bool]]] = []
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                while self._to_append or self._to_read:
                    to_read, self._to_read = self._to_read, []
                    await self._append()
                    # After what was decided before it was asked for, and while no append is under way.
                    await self._read_side_commits(to_read)
                    to_read = []
                self._idle.set()
        finally:
            self._has_ended = True
            for _, known in (*to_read, *self._to_read):
                _settle(known, False)

    async def flush(self) -> None:
        """Wait until nothing is waiting to be written."""
        await self._idle.wait()

    async def _append(self) -> None:
        batches = self._take_batches()
        if not batches:
            return
        began = time.perf_counter()
        try:
            refused = await self._write(batches)
        except StoreUnavailable as error:
            self.telemetry.on_store_failed("commit")
            self._give_up_all(batches, str(error))
            return
        except Exception as error:
            logger.error("the store broke an invariant", exc_info=error)
            self._give_up_all(batches, repr(error))
            return
        now, durable = self.clock.now(), {}
        for owned, batch in batches.items():
            if batch.shard_id in refused:
                owned.was_refused = True
                self.give_up(owned, "the shard belongs to another replica now, or the store went back")
                continue
            durable[batch.shard_id] = batch.events
            if not owned.is_dropped:
                ready = owned.committed(batch.last_seq, now)
                self._publish(self.shards[batch.shard_id], batch.events)
                self._hand_out(owned, ready)
        if durable:
            # Members wait for what has just been handed out, so that leaves before this is counted and logged.
            seconds = time.perf_counter() - began
            asyncio.get_running_loop().call_soon(self.telemetry.on_commit, durable, seconds)

    def _take_batches(self) -> dict[OwnedShard, ShardBatch]:
        """What the shards have decided since the last append. A shard that cannot say it is given up alone."""
        wanting, self._to_append = self._to_append, {}
        batches: dict[OwnedShard, ShardBatch] = {}
        for owned in wanting:
            if owned.has_entries and not owned.is_dropped:
                try:
                    batches[owned] = owned.take_batch()
                except Exception as error:
                    self._broke(owned, error)
        return batches

    async def _write(self, batches: Mapping[OwnedShard, ShardBatch]) -> Collection[int]:
        """Append the batches in one transaction; returns the shards that the store refuses."""
        spans = tracing.spans
        if spans is None:
            return await self.store.append(list(batches.values()))
        links: list[Any] = []
        for owned in batches:
            if (shard := self.shards.get(owned.shard_id)) is not None:
                links, shard.links = links + shard.links, []
        with spans.within("commit", tracing.Kind.CLIENT, links=links) as span:
            span.note("rota.shards", len(batches))
            span.note("rota.events", sum(len(batch.events) for batch in batches.values()))
            refused = await self.store.append(list(batches.values()))
            if refused:
                span.failed("the shard belongs to another replica, or the store went back")
            return refused

    def _give_up_all(self, batches: Mapping[OwnedShard, ShardBatch], why: str) -> None:
        """The append may have landed, may yet land, or never will: only a claim with a new epoch finds that out."""
        for owned in batches:
            self.give_up(owned, f"a write has an unknown outcome: {why}")

    async def _read_side_commits(self, asked: Collection[tuple[OwnedShard, asyncio.Future[bool]]]) -> None:
        if not asked:
            return
        is_known, shards = False, {owned.shard_id: owned for owned, _ in asked if not owned.is_dropped}
        try:
            commits = await self.store.side_commits(sorted(shards))
            for shard_id, found in groupby(commits, key=lambda commit: commit.shard_id):
                self._step(shards[shard_id], partial(shards[shard_id].take_in, list(found)))
            is_known = True
        except StoreUnavailable:
            pass
        finally:
            for _, known in asked:
                _settle(known, is_known)

    def _publish(self, shard: ServedShard, lines: Sequence[JournalEvent]) -> None:
        """Hand durable lines to those that follow their groups."""
        for line in lines if shard.watchers else ():
            watchers = shard.watchers.get((line.namespace, line.group_id), set())
            for queue in tuple(watchers):
                if queue.qsize() >= BACKLOG:  # Its client does not read: it would keep all lines to come in memory.
                    watchers.discard(queue)
                    while not queue.empty():
                        queue.get_nowait()
                queue.put_nowait(line if queue in watchers else None)
        if lines[0].seq > shard.notified_seq:
            self.subscriptions.notify(lines)
        else:
            self.subscriptions.notify([line for line in lines if line.seq > shard.notified_seq])
        shard.notified_seq = max(shard.notified_seq, lines[-1].seq)


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


# --- answers, and those that follow the journal ----------------------------------------------------------


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


class Subscriptions:
    """Listeners by group.

    They are called on the event loop once a line is durable, before the replies that it releases; with the lines of a
    join phase that starts as soon as these are decided (`records.settles`). They must be quick and must not raise.
    While the group's shard is with another owner they are not called.
    """

    def __init__(self) -> None:
        self._listeners: dict[tuple[str, str], list[Listener]] = {}

    def add(self, namespace: str, group_id: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` with the lines from now on, until the function that this returns is called."""
        key = (namespace, group_id)
        self._listeners.setdefault(key, []).append(listener)

        def end() -> None:
            listeners = self._listeners[key]
            listeners.remove(listener)
            if not listeners:
                del self._listeners[key]

        return end

    def follows(self, entry: Entry) -> bool:
        """Whether there is a listener for the group of this entry."""
        return (entry.namespace, entry.group_id) in self._listeners

    def notify(self, lines: Iterable[JournalEvent]) -> None:
        """Call them with the lines of one transaction."""
        by_group: dict[tuple[str, str], list[JournalEvent]] = {}
        for line in lines:
            key = (line.namespace, line.group_id) if line.group_id else ALL_TOPICS
            if key in self._listeners:
                by_group.setdefault(key, []).append(line)
        for key, of_group in by_group.items():
            for listener in tuple(self._listeners.get(key, ())):
                try:
                    listener(of_group)
                except Exception:
                    # A broken listener must not cost the shard its commit.
                    kinds = [line.kind for line in of_group]
                    logger.exception("a listener failed", extra={"kinds": kinds, "group_id": key[1]})
