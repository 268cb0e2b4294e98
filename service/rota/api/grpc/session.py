"""The session stream: all members of one process, their calls and answers, and pushes about their groups.

The order of what a client reads. Everything that a stream sends goes through one queue, and is read in the order in
which it was queued.

- Calls begin in the order in which they arrive, as a rule without a task (`SubmittedCall`). Where another replica owns
  the group they are sent to it in that order, but by two ways: a commit or a heartbeat may overtake a join, a sync or a
  leave. A client that needs an order waits for the answer. Answers are queued as they are ready: that to a heartbeat
  overtakes that to a join that waits. A client matches them by the number of the call.
- A push (`Rebalance`, `Election`, `Generation`, `Fenced`) is queued when the journal entry that it reports is durable,
  which is also the first moment at which an answer may reflect it. An answer takes a turn of the event loop more, and
  that of a task several. So a push about a generation may come BEFORE the answer that would have brought it.

A client therefore needs no order between them: a push names its generation, and a member with another one ignores it.
Pushes that a member's own call brought about are left out, since the answer says the same: a member that is joining
gets no push to join (`MemberCalls.joins`), and a leader that opened a generation by its sync has its share in the
answer (`MemberCalls.syncs`). A push may be left out that would have been needed, where a rebalance begins in the turns
between an answer and its event. That costs time and nothing else: the next heartbeat is answered with
REBALANCE_IN_PROGRESS. Pushes make members quick; heartbeats make them right.

A stream that ends says nothing about its members: they may be on another one already. Only with `leave_after_ms` do
they leave, and the coordinator, which knows when each was last seen, decides whether they were silent for so long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from sys import intern
from typing import Any

from rota.api.grpc.bound_calls import Bound, begin_bound
from rota.api.grpc.calls import Calls, Context, client_of
from rota.api.grpc.failures import CallFailed, Failure, converted, error_event, failure_of, outcome_of
from rota.api.grpc.receiving import SessionMessages
from rota.api.grpc.requests import requests_in
from rota.api.grpc.results import Results, reply_of
from rota.api.grpc.roster import GroupKey, Loss, Roster
from rota.api.grpc.submitted import CALL_KINDS, CallKind, MemberRequest, SubmittedCall
from rota.api.grpc.turns import BYTES_OF_A_TURN, Turns
from rota.api.grpc.unread import Unread
from rota.api.heartbeats import GROUPS_OF_A_TURN, complete, tried
from rota.api.large import begin_reading, is_large
from rota.observability import tracing
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.messages import Heartbeat, HeartbeatMany, JoinGroup, JoinReply, SyncGroup
from rota.replica.ports import Answer
from rota.v1.coordinator_pb2 import Drain, SessionEvent, SessionOptions, SessionRequest
from rota.wire.heartbeats import HeartbeatReader
from rota.wire.protobuf import parse
from rota.wire.repeated import Repeated
from rota.wire.shapes import invalid

OPERATION = "Session"
HEARTBEAT = "HeartbeatMany"
MAX_CALLS = 20_000
"""Open calls of one stream: two for each member of the largest group."""
MOST_FORGOTTEN = 1_000
"""Groups without members on a stream, or half of all its groups, are forgotten at the latest when there are more."""
MAX_LEAVE_AFTER_MS = 1_800_000
COME_TOGETHER = ("joined", "synced", "rebalance", "generation")
"""Events that thousands of members get at once. The answer to a heartbeat and the news of an election do not wait."""
WRITES_OF_A_TURN = 4
"""Streams that write such events in one turn of the event loop. More events come while the others wait."""
LAST_WORDS_S = 1.0
"""A client has so long to read the events of a stream that ends with a failure."""
DRAINING = "this replica is stopping; go on at another one"
NOT_READ = Failure(ErrorCode.THROTTLED, "the stream's events are not read fast enough")

Work = Callable[[], Awaitable[SessionEvent]]


class Session:
    """One stream. `run` reads, carries out and writes until the client or the server ends it.

    Calls are begun in the order in which they come and answered as they are ready. Heartbeats are answered on the
    spot where that is possible, whatever else waits.
    """

    __slots__ = (
        "_batching",
        "_broken",
        "_calls",
        "_closed",
        "_context",
        "_draining",
        "_failure",
        "_groups",
        "_has_received",
        "_heartbeats",
        "_host",
        "_leave_after_ms",
        "_messages",
        "_most_groups",
        "_open",
        "_reading",
        "_receives",
        "_rejection",
        "_results",
        "_roster",
        "_rules",
        "_task",
        "_unbegun",
        "_unread",
        "_waiting",
        "_writing",
        "loss",
        "takes_elections",
    )

    def __init__(self, calls: Calls, roster: Roster, context: Context, messages: SessionMessages) -> None:
        self._calls = calls
        self._roster = roster
        self._context = context
        self._messages = messages
        self._host: str | None = None
        """Where its client is; None until the first join."""
        self._heartbeats: HeartbeatReader | None = None
        """None until the first heartbeat."""
        self._results = Results()
        self._groups: set[GroupKey] = set()
        """Where it has, or had, members, or calls to become one."""
        self._most_groups = MOST_FORGOTTEN
        """With so many, those without members are forgotten."""
        self._rules: object = None
        """Those by which all of them were looked at together."""
        self._open: dict[int, asyncio.Task[None] | SubmittedCall] = {}
        self._unbegun = 0
        """Tasks of calls that have not run yet. Calls behind them are tasks, too, so that they begin in their order."""
        self._unread: Unread | None = None
        """None while there is none: an empty queue is large beside a stream that is silent."""
        self._writing: asyncio.Task[None] | None = None
        """Writes the unread events. It ends with the last of them."""
        self._broken = False
        """Whether that has failed: `run` raises its error."""
        self._task: asyncio.Task[Any] | None = None
        """The rpc's own, once `run` waits for the next message in it. A task beside it takes 0.8 kB."""
        self._receives = True
        """Whether more messages are received."""
        self._has_received = False
        """Whether a message waits for its turn: a drain does not end the stream before its calls are answered."""
        self._reading: asyncio.Future[Any] | None = None
        """The last large call that is not read yet."""
        self._waiting: asyncio.Future[None] | None = None
        """Set while `run` waits for the end of open calls."""
        self._leave_after_ms: int | None = None
        self._batching = False
        self.takes_elections = False
        self.loss: Loss | None = None
        """See `roster.Stream` about both."""
        self._draining = False
        self._closed = False
        self._failure: Failure | None = None
        """The failure that ends the stream once all is written."""
        self._rejection: Failure | None = None
        """The failure that ends it without that."""

    async def run(self) -> Failure | None:
        """Serve the stream until nothing more will come; returns what ended it, None where its client or a drain has.

        Cancelled when the client is gone. One coroutine until then: each is memory for as long as the stream is open.
        """
        self._task = asyncio.current_task()
        try:
            with self._calls.admission.hold(self._admit_again, self._reject):
                try:
                    while self._receives:
                        data = await self._messages.next()
                        if not isinstance(data, bytes):
                            break
                        await self._begin_each(data)
                        del data  # It would stay in memory for as long as this waits for the next one.
                        if self._draining:
                            self._look()
                except asyncio.CancelledError:
                    if self._task is None or self._receives or self._task.uncancel():
                        raise  # The client is gone.
                except Exception as error:  # a message that cannot be parsed has no call number to answer
                    self._failure = converted(error, OPERATION)
                self._receives = False
                return await self._finish()
        finally:
            self._closed, self._receives = True, False
            ended = [*self._open.values(), *([self._writing] if self._writing is not None else [])]
            for each in ended:
                each.cancel()
            tasks = [each for each in ended if isinstance(each, asyncio.Task)]
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:  # the end of its messages may be seen first, and the stream's own end while the tasks end
                # The roster keeps this object until the grace is over.
                self._heartbeats = self._unread = None
                self._results = Results()
                self._roster.lose(self, self._groups, self._lost())

    def push(self, event: SessionEvent) -> None:
        """Queue news or an answer."""
        if self._closed:
            return
        if self._unread is None:
            self._unread = Unread()
            self._writing = asyncio.create_task(self._write(self._unread))
        elif self._unread.is_full:
            self._failure = NOT_READ
            self._look()
            return
        self._unread.append(event)

    def drain(self) -> None:
        """Announce that the server stops. The stream ends when open calls are answered; no member leaves by that."""
        if not self._draining:
            self._draining = True
            self.push(SessionEvent(drain=Drain(reason=DRAINING)))

    def _look(self) -> None:
        """Have `run` look at what has changed: it may receive no more, or have waited for this."""
        if self._receives:
            if self._is_over():
                self._receives = False
                if self._task is not None and self._task is not asyncio.current_task():
                    self._task.cancel()  # only its wait for the next message: `run` goes on
        elif self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _is_over(self) -> bool:
        """Whether the server ends the stream, rather than its client."""
        is_drained = self._draining and not (self._has_received or self._open) and self._writing is None
        return is_drained or self._broken or self._failure is not None or self._rejection is not None

    def _lost(self) -> Loss:
        """That it is lost now."""
        stays = self._draining or self._rejection is not None
        context, admission = copy_context(), self._calls.admission
        return Loss(
            at_s=asyncio.get_running_loop().time(),
            leave_after_ms=None if stays else self._leave_after_ms,
            in_name_of_caller=lambda leave: context.run(admission.in_name_of_caller, leave),
        )

    # --- the caller ---------------------------------------------------------------------------------

    def _admit_again(self) -> None:
        """Raise `RejectedRequest` where the caller may be a member of none of these groups any more.

        Where it may be one of others, the stream goes on for those, without pushes about the rest.
        """
        refused, rules = None, self._calls.admission.rules
        for key in tuple(self._groups) if rules is not self._rules else ():
            try:
                self._calls.admission.admit_unread(Heartbeat, *key)
            except RejectedRequest as rejected:
                refused = rejected
                self._groups.discard(key)
                self._roster.remove(self, key, self._roster.members_on(self, key))
        if refused is not None and not self._groups:
            raise refused
        self._rules = rules
        self._calls.admission.admit_undecoded(HeartbeatMany)

    def _reject(self, rejected: RejectedRequest) -> None:
        self._rejection = failure_of(rejected)
        self._look()

    # --- writing ------------------------------------------------------------------------------------

    async def _write(self, unread: Unread) -> None:
        """Write the queued events, also those that are queued meanwhile.

        None once the caller is rejected: unread events may be about groups that the caller may not see.
        """
        try:
            while await self._may_write(unread):
                await self._context.write(unread.dump_next(batching=self._batching))
            self._unread = self._writing = None
        except BaseException:
            self._broken = True
            raise
        finally:
            self._look()

    async def _may_write(self, unread: Unread) -> bool:
        """Whether there are events to write. `COME_TOGETHER` wait for a turn in which few streams write."""
        if self._batching and unread and unread.first_kind in COME_TOGETHER:
            turns, size = self._messages.turns_of_answers, BYTES_OF_A_TURN // WRITES_OF_A_TURN
            if not turns.try_begin(size):
                await turns.wait(size)
        return bool(unread) and self._rejection is None

    async def _finish(self) -> Failure | None:
        """Write the unread events and the answers to open calls.

        Where the stream ends with a failure only the events, and not for as long as its client likes.
        """
        while self._writing is not None or self._open:
            if self._broken and self._writing is not None:
                await self._writing
            if self._failure is not None or self._rejection is not None:
                if self._writing is not None:
                    await asyncio.wait((self._writing,), timeout=LAST_WORDS_S)
                break
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._failure or self._rejection

    # --- reading ------------------------------------------------------------------------------------

    async def _begin_each(self, data: bytes) -> None:
        """Begin all calls of a message, as many in each turn of the event loop as go into a turn's bytes."""
        if is_large(len(data)):
            await self._until_read()
        turns = self._messages.turns_of(data)
        await self._until_turn(turns, min(len(data), BYTES_OF_A_TURN))
        reader = self._heartbeats
        repeated = reader.repeated(data) if reader is not None else None
        if repeated is not None and self._may_heartbeat():
            await self._answer_heartbeats(*repeated)
            return
        size, requests = requests_in(data)
        repeated_requests = Repeated() if size > 1 else None
        in_a_turn = max(1, size * BYTES_OF_A_TURN // max(1, len(data)))
        request: Any = None
        for number in range(size):
            if number and number % in_a_turn == 0:
                request = None  # It would stay in memory for as long as this waits for the next turn.
                await self._until_turn(turns, BYTES_OF_A_TURN)
            request, its_bytes = next(requests)
            if request.call < 1:
                raise invalid("call must be at least 1")
            if request.HasField("heartbeat"):
                await self._heartbeat(request.call, request.heartbeat)
            else:
                self._begin(request, its_bytes, repeated_requests)
        if self._heartbeats is not None:
            self._heartbeats.remember(data)

    async def _until_turn(self, turns: Turns, size: int) -> None:
        """Return in a turn with room for so many bytes of a message.

        Raises `RejectedRequest` where it would wait and its caller may be a member nowhere: it would take memory.
        """
        if not turns.try_begin(size):
            self._calls.admission.admit_undecoded(HeartbeatMany)
            self._has_received = True
            await turns.wait(size)
            self._has_received = False

    async def _until_read(self) -> None:
        """Return when the last large call is read: so one message of the stream waits for that, and one behind it."""
        while self._reading is not None:
            self._has_received = True
            await asyncio.wait((self._reading,))
            self._has_received = False

    def _begin(self, message: Any, data: bytes, repeated: Repeated | None) -> None:
        call: int = message.call
        match message.WhichOneof("request"):
            case "options":
                self._start(call, partial(self._set_options, message.options), "SessionOptions")
            case "cancel":
                self._cancel(message.cancel)
            case None:
                self._start(call, self._refuse_unknown, OPERATION)
            case name:
                kind, message = CALL_KINDS[name], getattr(message, name)
                if is_large(len(data)):
                    self._begin_large(call, name, message, data)
                elif self._unbegun or tracing.spans is not None:
                    self._start(call, partial(self._read_and_call, kind, message), kind.rpc.name)
                else:
                    self._submit(call, kind, message, repeated)

    def _start(self, call: int, work: Work, operation: str) -> None:
        """Carry a call out as a task of its own; `run` awaits those that are left at the end."""
        if self._may_open(call):
            self._unbegun += 1
            task = self._open[call] = asyncio.create_task(self._carry_out(call, work, operation))
            task.add_done_callback(lambda _: self.close(call))
            # Right behind the task's first turn, which comes also if it is cancelled before.
            asyncio.get_running_loop().call_soon(self._note_begun)

    def _submit(self, call: int, kind: CallKind, message: Any, repeated: Repeated | None) -> None:
        """Carry a call out without a task."""
        if not self._may_open(call):
            return
        try:
            request = repeated.find(kind.rpc, message) if repeated is not None else None
            if request is not None:
                self._calls.admission.admit_unread(kind.rpc.request, request.namespace, request.group_id)
            else:
                self._calls.admit_unread(kind.rpc, message)
                request = kind.rpc.read_request(message, self._calls.limits, **self._unsaid(kind))
                if repeated is not None:
                    repeated.keep(kind.rpc, request)
            request = self._admitted(request)
        except Exception as error:
            self.answer(call, converted(error, kind.rpc.name), kind.rpc.name)
            return
        submitted = self._open[call] = SubmittedCall(self, call, kind, request)
        submitted.begin(self._calls, self._context)

    def _begin_large(self, call: int, name: str, message: Any, data: bytes) -> None:
        """Have it read on the thread of large messages. Until then it is bytes: parsed it may be 40 times as large."""
        if not self._may_open(call):
            return
        kind, limits = CALL_KINDS[name], self._calls.limits
        try:
            self._calls.admit_unread(kind.rpc, message)
        except RejectedRequest as rejected:
            self.answer(call, failure_of(rejected), kind.rpc.name)
            return
        unsaid = self._unsaid(kind)

        def read() -> Any:
            return kind.rpc.read_request(getattr(parse(SessionRequest, data), name), limits, **unsaid)

        reading = self._reading = begin_reading(read)
        reading.add_done_callback(self._note_read)
        self._start(call, partial(self._call, kind, reading), kind.rpc.name)

    def _note_read(self, reading: asyncio.Future[Any]) -> None:
        if not reading.cancelled():
            reading.exception()  # Its call may be cancelled before it looks.
        if self._reading is reading:
            self._reading = None

    def _note_begun(self) -> None:
        self._unbegun -= 1

    def _may_open(self, call: int) -> bool:
        """Whether the call may be opened; an error is its answer otherwise."""
        if len(self._open) < MAX_CALLS and call not in self._open:
            return True
        detail = f"a stream has at most {MAX_CALLS} open calls, each with a number of its own"
        self.push(error_event(call, Failure(ErrorCode.INVALID_REQUEST, detail)))
        return False

    def close(self, call: int) -> None:
        """Forget an open call."""
        del self._open[call]
        if not self._open:
            self._open.clear()  # which frees its table
            self._look()

    def _cancel(self, call: int) -> None:
        opened = self._open.get(call)
        if opened is not None:
            opened.cancel()

    async def _carry_out(self, call: int, work: Work, operation: str) -> None:
        self.answer(call, await outcome_of(work(), operation), operation)

    def answer(self, call: int, outcome: SessionEvent | Failure, operation: str) -> None:
        """Queue the answer to a call."""
        if isinstance(outcome, Failure):
            self._calls.metrics.request_answered(operation, outcome.code)
            self.push(error_event(call, outcome))
        else:
            self._calls.metrics.request_answered(operation, ErrorCode.NONE)
            outcome.call = call
            self.push(outcome)

    # --- calls --------------------------------------------------------------------------------------

    async def _set_options(self, options: Any) -> SessionEvent:
        given = options.HasField("leave_after_ms")
        if given and not 0 <= options.leave_after_ms <= MAX_LEAVE_AFTER_MS:
            raise invalid(f"leave_after_ms must be from 0 to {MAX_LEAVE_AFTER_MS}")
        self._leave_after_ms = options.leave_after_ms if given else None
        self._batching, self.takes_elections = options.batching, options.elections
        fields = {"leave_after_ms": self._leave_after_ms, "batching": self._batching, "elections": self.takes_elections}
        return SessionEvent(options=SessionOptions(**fields))

    async def _refuse_unknown(self) -> SessionEvent:
        raise invalid("the call asks for nothing that this server knows")

    async def _read_and_call(self, kind: CallKind, message: Any) -> SessionEvent:
        self._calls.admit_unread(kind.rpc, message)
        request = kind.rpc.read_request(message, self._calls.limits, **self._unsaid(kind))
        return await self._ask(kind, request)

    async def _call(self, kind: CallKind, reading: Awaitable[Any]) -> SessionEvent:
        try:
            request = await reading
        finally:
            del reading  # Its error has this frame: both would wait for the collector, with the message's bytes.
        return await self._ask(kind, request)

    async def _ask(self, kind: CallKind, read: Any) -> SessionEvent:
        request = self._admitted(read)
        bound = self.begin_bound(request)
        code: ErrorCode | None = None
        try:
            answer = await self._calls.ask(kind.rpc, request, self._context)
            code = ErrorCode.NONE
        except CallFailed as failed:
            code = failed.failure.code
            raise
        finally:
            if bound is not None:
                bound.end(code)
        return self.event_of(kind, request, answer)

    def _unsaid(self, kind: CallKind) -> dict[str, Any]:
        """Fields of a request that its message does not have."""
        if kind.rpc.request is not JoinGroup:
            return {}
        if self._host is None:
            self._host = intern(client_of(self._context, self._calls.proxies))
        return {"host": self._host}

    def _admitted(self, request: Any) -> MemberRequest:
        """The request, before any member is bound: members on the stream get events of the group."""
        self._calls.admission.admit(request)
        if isinstance(request, JoinGroup | SyncGroup):
            # Names that are in memory once, for all streams of the group.
            self.note_group((intern(request.namespace), intern(request.group_id)))
        admitted: MemberRequest = request
        return admitted

    def event_of(self, kind: CallKind, request: MemberRequest, answer: Answer) -> SessionEvent:
        """The answer as it travels, to a request that has succeeded; its member is on this stream from here on."""
        reply = answer.reply
        if isinstance(request, JoinGroup | SyncGroup):
            member_id = reply.member_id if isinstance(reply, JoinReply) else request.member_id
            key = (request.namespace, request.group_id)
            self.note_group(key)  # `_admit_again` may have removed it while the call was under way.
            self._roster.bind(self, key, member_id)
        event = SessionEvent()
        self._calls.answers.fill(kind.rpc, getattr(event, kind.answer), reply, answer.revision, answer.epoch)
        return event

    def note_group(self, key: GroupKey) -> None:
        """See `roster.Stream`. A client may name any number of groups: those without members are forgotten."""
        if len(self._groups) >= self._most_groups:
            self._groups = {each for each in self._groups if self._roster.has_members(self, each)}
            self._most_groups = 2 * len(self._groups) + MOST_FORGOTTEN
        self._groups.add(key)

    def begin_bound(self, request: MemberRequest) -> Bound | None:
        """Bind the member of a call to this stream while the call is under way."""
        return begin_bound(self._roster, self, request)

    # --- heartbeats ---------------------------------------------------------------------------------

    async def _heartbeat(self, call: int, message: Any) -> None:
        """On the spot, if every group can answer so; otherwise the others are asked as a call."""
        try:
            refusal = SessionEvent(call=call)
            refusal.heartbeat.SetInParent()
            if self._calls.refuse_heartbeats(message, refusal.heartbeat):
                self.push(refusal)
                return
            if self._heartbeats is None:
                self._heartbeats = HeartbeatReader(self._calls.limits)
            self._heartbeats.begin(message)
            requests: list[HeartbeatMany] = []
            for at in range(0, len(message.groups), GROUPS_OF_A_TURN):
                if at:
                    await self._until_next_part()
                requests += self._heartbeats.read_part(message.groups[at : at + GROUPS_OF_A_TURN])
        except RejectedRequest as rejected:
            self._calls.metrics.request_answered(HEARTBEAT, rejected.code)
            self.push(error_event(call, Failure(rejected.code, rejected.detail)))
            return
        await self._answer_heartbeats(call, requests)

    def _until_next_part(self) -> Awaitable[None]:
        """Return in the turn for the next part of a message with heartbeats."""
        return self._until_turn(self._messages.turns_of_heartbeats, BYTES_OF_A_TURN)

    def _may_heartbeat(self) -> bool:
        """Whether the caller may send heartbeats anywhere; each group is asked about by `GuardedCoordinator`."""
        try:
            self._calls.admission.admit_undecoded(HeartbeatMany)
        except RejectedRequest:
            return False
        return True

    async def _answer_heartbeats(self, call: int, requests: list[HeartbeatMany]) -> None:
        coordinator, next_turn = self._calls.coordinator, self._until_next_part
        answers, missing = await tried(coordinator, requests, self._note_heartbeats, next_turn)
        if missing:
            self._start(call, partial(self._heartbeat_later, answers, missing), HEARTBEAT)
            return
        event = self._results.event_of(answers)
        event.call = call
        self.push(event)

    async def _heartbeat_later(self, answers: list[Answer], missing: dict[int, HeartbeatMany]) -> SessionEvent:
        await complete(self._calls.coordinator, answers, missing, self._note_heartbeats)
        return self._results.event_of(answers)

    def _note_heartbeats(self, request: HeartbeatMany, answer: Answer) -> None:
        reply = reply_of(answer)
        if reply.error is ErrorCode.NONE:
            self.note_group((request.namespace, request.group_id))
            self._roster.on_heartbeat(self, request, reply.errors)
        self._calls.count(request, answer)
