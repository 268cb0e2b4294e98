"""The session stream: all members of one process, their calls and answers, and pushes about their groups.

The order of what a client reads. Everything that a stream sends goes through one queue, and is read in the order in
which it was queued.

- Calls begin in the order in which they arrive. Where another replica owns the group they are sent to it in that order,
  but by two ways: a commit or a heartbeat may overtake a join, a sync or a leave. A client that needs an order waits
  for the answer. Answers are queued as they are ready: that to a heartbeat overtakes that to a join that waits. A
  client matches them by the number of the call.
- A push (`Rebalance`, `Election`, `Generation`, `Fenced`) is queued when the journal entry that it reports is durable,
  which is also the first moment at which an answer may reflect it. An answer takes some turns of the event loop more.
  So a push about a generation may come BEFORE the answer that would have brought it.

A client therefore needs no order between them: a push names its generation, and a member with another one ignores it.
A member with a join, a sync or a leave under way gets no push, since the answer says the same. A push may be left out
that would have been needed, where a rebalance begins in the turns between an answer and its event. That costs time and
nothing else: the next heartbeat is answered with REBALANCE_IN_PROGRESS. Pushes make members quick; heartbeats make them
right.

A stream that ends says nothing about its members: they may be on another one already. Only with `leave_after_ms` do
they leave, and the coordinator, which knows when each was last seen, decides whether they were silent for so long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from rota.core.replica.ports import Answer
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.messages import CommitOffsets, Heartbeat, HeartbeatMany, JoinGroup, LeaveGroup, SyncGroup
from rota.protocol.wire.batching import MAX_BATCH, dump_next, read_varint, split_batch
from rota.protocol.wire.protobuf import parse
from rota.protocol.wire.rpcs import RPCS, Rpc
from rota.protocol.wire.shapes import invalid
from rota.server.failures import rejection_of
from rota.server.grpc.calls import AskedMany, Calls
from rota.server.grpc.failures import error_event, outcome_of
from rota.server.grpc.receiving import Context, next_message
from rota.server.grpc.roster import GroupKey, Roster, groups_on
from rota.v1.coordinator_pb2 import Drain, SessionEvent, SessionOptions, SessionRequest

OPERATION = "Session"
MAX_CALLS = 20_000
"""Open calls of one stream: two for each member of the largest group."""
MAX_LEAVE_AFTER_MS = 1_800_000
MAX_UNREAD = 20_000
"""Events that the client has not taken yet. A client that falls further behind is cut off."""
MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""The bytes of such events: eight of the largest requests. A single larger answer is sent nevertheless."""
DRAINING = "this replica is stopping; go on at another one"
NOT_READ = RejectedRequest(ErrorCode.THROTTLED, "the stream's events are not read fast enough")
RULES = f"a request has a number of at least 1, a batch at most {MAX_BATCH} requests and nothing beside them"

MemberRequest = JoinGroup | SyncGroup | LeaveGroup | CommitOffsets
"""Calls of a stream that are neither heartbeats nor about the stream itself."""
Work = Callable[[], Awaitable[SessionEvent]]


class CallKind(NamedTuple):
    """How one kind of a member's call travels on the stream: its rpc, and the event that answers it."""

    rpc: Rpc
    answer: str


CALL_KINDS = {
    "join": CallKind(RPCS[JoinGroup], "joined"),
    "sync": CallKind(RPCS[SyncGroup], "synced"),
    "leave": CallKind(RPCS[LeaveGroup], "left"),
    "commit": CallKind(RPCS[CommitOffsets], "committed"),
}
_OPERATIONS = {name: kind.rpc.name for name, kind in CALL_KINDS.items()} | {
    "options": "SessionOptions",
    "heartbeat": "HeartbeatMany",
}
_TAGS_THAT_DO_NOT_WAIT = {
    SessionRequest.OPTIONS_FIELD_NUMBER << 3 | 2,
    SessionRequest.HEARTBEAT_FIELD_NUMBER << 3 | 2,
    SessionRequest.CANCEL_FIELD_NUMBER << 3,
}
"""How protobuf marks what begins before other streams' joins."""


class Session:
    """One stream. Calls begin in the order in which they come, and each is then answered by a task of its own."""

    def __init__(self, calls: Calls, roster: Roster, context: Context) -> None:
        self._calls = calls
        self._roster = roster
        self._context = context
        self.members: dict[tuple[GroupKey, str], None] = {}
        self._open: dict[int, asyncio.Task[None]] = {}
        self._known: dict[bytes, HeartbeatMany] = {}
        """Heartbeats of the last message that had any, by their bytes: to read 1,000 again takes 1.9 ms, more than all
        the rest of their call."""
        self._unread = deque[SessionEvent]()
        self._unread_bytes = 0
        self._writing: asyncio.Task[None] | None = None
        """Writes the unread events, and is done when there are none."""
        self._rules: object = None
        """The access rules by which the groups of all members were checked."""
        self._leave_after_ms: int | None = None
        self._is_beginning = False
        """Whether calls of a message have not begun yet."""
        self._has_unbegun = False
        """Whether there may be tasks of calls that have not run yet. Heartbeats behind them wait for that."""
        self._has_all = False
        """Whether the client has sent its last message."""
        self._is_ending = False
        """Whether the server ends the stream. No member leaves by that."""
        self._over: asyncio.Future[RejectedRequest | None] = asyncio.get_running_loop().create_future()

    async def run(self) -> RejectedRequest | None:
        """Serve the stream until it is over; returns its failure, None if its client or a drain has ended it.

        Cancelled when the client is gone.
        """
        receiving = asyncio.create_task(self._receive())
        try:
            with self._calls.admission.hold(self._admit_again, self._reject):
                return await self._over
        finally:
            self._end(None)
            tasks = [receiving, *self._open.values(), *([self._writing] if self._writing is not None else [])]
            for task in tasks:
                task.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:  # The end of its messages may be seen first, and the stream's own end while the tasks end.
                self._known.clear()  # The roster keeps this object until its members have left.
                self._roster.lose(self, None if self._is_ending else self._leave_after_ms)

    def push(self, event: SessionEvent) -> None:
        """Queue an event or an answer."""
        if self._over.done():
            return
        if len(self._unread) >= MAX_UNREAD or self._unread_bytes > MAX_UNREAD_BYTES:
            self._end(NOT_READ)
            return
        self._unread.append(event)
        self._unread_bytes += event.ByteSize()
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    def drain(self) -> None:
        """Announce that the server stops. The stream ends when open calls are answered; no member leaves by that."""
        if not self._is_ending:
            self._is_ending = True
            self.push(SessionEvent(drain=Drain(reason=DRAINING)))

    def _end(self, failure: RejectedRequest | None) -> None:
        if not self._over.done():
            self._over.set_result(failure)

    def _end_if_idle(self) -> None:
        is_idle = not (self._is_beginning or self._open) and self._writing is None
        if is_idle and (self._has_all or self._is_ending):
            self._end(None)

    async def _write(self) -> None:
        """Write the queued events, also those that are queued meanwhile."""
        try:
            while self._unread:
                data = dump_next(self._unread)
                self._unread_bytes = self._unread_bytes - len(data) if self._unread else 0
                await self._context.write(data)
        except Exception as error:
            self._end(rejection_of(error, OPERATION))
        self._writing = None
        self._end_if_idle()

    # --- the caller ---------------------------------------------------------------------------------

    def _admit_again(self) -> None:
        """Raise `RejectedRequest` if the caller may be a member of none of its members' groups any more.

        If it may be one of others, the stream goes on for those, without pushes about the rest.
        """
        admission, refused = self._calls.admission, None
        for key in groups_on(self) if admission.rules is not self._rules else ():
            try:
                admission.admit_unread(Heartbeat, *key)
            except RejectedRequest as rejected:
                refused = rejected
                self._roster.take_off(self, key)
        if refused is not None and not self.members:
            raise refused
        self._rules = admission.rules
        admission.admit_undecoded(HeartbeatMany)

    def _reject(self, rejected: RejectedRequest) -> None:
        """End the stream. Unread events may be about groups that the caller may not see: they are dropped."""
        self._is_ending = True
        self._end(rejected)

    # --- calls --------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        """Begin the calls of all messages. They are received within the budget until the caller may be a member."""
        receiver, is_trusted = self._calls.receiver, False
        try:
            while (data := await (next_message if is_trusted else receiver.receive)(self._context)) is not None:
                self._is_beginning = True
                await self._begin_all(data)
                self._is_beginning = False
                del data  # It would stay in memory for as long as this waits for the next one.
                self._end_if_idle()
                is_trusted = is_trusted or receiver.may_join(self._calls.admission)
            self._has_all = True
            self._end_if_idle()
        except Exception as error:  # A message that cannot be parsed has no call number to answer.
            self._end(rejection_of(error, OPERATION))

    async def _begin_all(self, data: bytes) -> None:
        """Begin all calls of a message, in as many turns of the event loop as their bytes take."""
        try:
            requests = split_batch(SessionRequest, data)
        except ValueError:
            raise invalid(RULES) from None
        receiver = self._calls.receiver
        for each in requests:
            _, at = read_varint(each, 1)  # behind the call's number
            waits = each[at : at + 1] == b"" or each[at] not in _TAGS_THAT_DO_NOT_WAIT
            turns = receiver.turns if waits else receiver.turns_of_heartbeats
            if turns.is_over:
                self._calls.admission.admit_undecoded(HeartbeatMany)  # A message that waits takes memory.
            await turns.take(len(each))
            await self._begin(each)

    async def _begin(self, data: bytes) -> None:
        """Begin one call. An error of what it asks for is its answer; other errors are raised, and end the stream."""
        request = parse(SessionRequest, data)
        call, name = request.call, request.WhichOneof("request")
        if request.batch or call < 1:
            raise invalid(RULES)
        if name == "cancel":
            if request.cancel in self._open:
                self._open[request.cancel].cancel()
            return
        operation = _OPERATIONS.get(name, OPERATION)
        try:
            if len(self._open) >= MAX_CALLS or call in self._open:
                raise invalid(f"a stream has at most {MAX_CALLS} open calls, each with a number of its own")
            work: Work
            match name:
                case None:
                    raise invalid("the call asks for nothing that this server knows")
                case "options":
                    work = partial(self._set_options, request.options)
                case "heartbeat":
                    if self._has_unbegun:
                        await asyncio.sleep(0)
                        self._has_unbegun = False
                    self._calls.admission.admit_undecoded(HeartbeatMany)
                    asked = await self._calls.ask_many(request.heartbeat, self._known)
                    work = partial(self._answer_heartbeats, asked)
                case _:
                    del request  # Read on a thread, the call is bytes until then.
                    work = partial(self._ask, CALL_KINDS[name], await self._read(name, data))
                    self._has_unbegun = True
        except Exception as error:
            self._answer(call, rejection_of(error, operation), operation)
            return
        task = self._open[call] = asyncio.create_task(self._carry_out(call, work, operation))
        task.add_done_callback(lambda _: self._close(call))

    async def _read(self, name: str, data: bytes) -> MemberRequest:
        def parse_it(data: bytes) -> Any:
            return getattr(parse(SessionRequest, data), name)

        read: MemberRequest = await self._calls.read(CALL_KINDS[name].rpc, data, parse_it)
        self._calls.admission.admit(read)
        return read

    async def _carry_out(self, call: int, work: Work, operation: str) -> None:
        self._answer(call, await outcome_of(work(), operation), operation)

    def _answer(self, call: int, outcome: SessionEvent | RejectedRequest, operation: str) -> None:
        """Queue the answer to a call."""
        if isinstance(outcome, RejectedRequest):
            self._calls.count(operation, outcome.code)
            outcome = error_event(call, outcome)
        else:
            self._calls.count(operation, ErrorCode.NONE)
            outcome.call = call
        self.push(outcome)

    def _close(self, call: int) -> None:
        del self._open[call]
        self._end_if_idle()

    async def _set_options(self, options: Any) -> SessionEvent:
        given = options.HasField("leave_after_ms")
        if given and not 0 <= options.leave_after_ms <= MAX_LEAVE_AFTER_MS:
            raise invalid(f"leave_after_ms must be from 0 to {MAX_LEAVE_AFTER_MS}")
        self._leave_after_ms = options.leave_after_ms if given else None
        return SessionEvent(options=SessionOptions(leave_after_ms=self._leave_after_ms))

    async def _ask(self, kind: CallKind, request: MemberRequest) -> SessionEvent:
        asking = self._calls.ask(kind.rpc, request, self._context)
        followed = asking if isinstance(request, CommitOffsets) else self._roster.follow(self, request, asking)
        answer = await followed
        event = SessionEvent()
        kind.rpc.fill_answer(getattr(event, kind.answer), answer.reply, answer.revision, answer.epoch)
        return event

    async def _answer_heartbeats(self, asked: list[AskedMany]) -> SessionEvent:
        event = SessionEvent()
        event.heartbeat.SetInParent()
        await self._calls.write_many(event.heartbeat, asked, self._note_heartbeats)
        return event

    def _note_heartbeats(self, request: HeartbeatMany, answer: Answer) -> None:
        self._roster.on_heartbeats(self, request, answer.reply)
        self._calls.count_heartbeats(request, answer)
