"""One member of one group: joins, leads, syncs, heartbeats, rejoins and leaves in the background.

Two tasks matter. The driver does what the state machine of `rota.membership` plans: one call at a time, with the
deadline as an alarm that rings whether or not a call is under way. The user's callbacks run beside it, so that slow
work never keeps a heartbeat waiting.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar

from rota.client.callbacks import CallbackQueue, Listeners, call, notify
from rota.client.calls import Caller, patience_ms
from rota.client.errors import (
    CoordinatorError,
    CoordinatorUnreachable,
    IllegalGeneration,
    MembershipLost,
    RebalanceInProgress,
    error_for,
)
from rota.client.events import Assigned, Broadcast, Lost, MemberEvent, Reachable, Rebalancing, Revoked, Unreachable
from rota.client.pulse import Beat, Pulse
from rota.client.roles import Role
from rota.client.transports.port import Answer, Transport
from rota.membership import Membership, MembershipSettings, Planned, State
from rota.membership import events as core
from rota.membership.backoff import Backoff
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    CommitOffsets,
    CommitReply,
    FenceReply,
    FetchedOffset,
    FetchOffsets,
    FetchReply,
    Heartbeat,
    OffsetToCommit,
    Request,
    TopicPartitions,
    VerifyFence,
)

Share = TypeVar("Share")

_COMMIT_TIMEOUT_MS = 5_000
_CLOSE_TIMEOUT_S = 5.0
_log = logging.getLogger(__name__)


class Member(Generic[Share]):
    """A membership, for the time of an `async with` block.

    Leaving the block is two-phase: `on_revoked` finishes first, then the group is left. If the coordinator refuses
    this member for good (`FencedInstanceId`, `InconsistentGroupProtocol`, …) or a callback raises, the block is
    cancelled and that error comes out of it.

    `Share` is what an assignment means to the user: what its role reads in it.
    """

    def __init__(
        self,
        transport: Transport,
        settings: MembershipSettings,
        *,
        role: Role[Share],
        listeners: Listeners[Share] | None = None,
        leave_on_close: bool | None = None,
        jitter: Callable[[], float] = random.random,
        pulse: Pulse | None = None,
    ) -> None:
        """`leave_on_close` is whether closing tells the group; by default static members do not, they come back.

        With a `pulse`, this member is kept alive also while its event loop is blocked.
        """
        self._pulse = pulse
        self._beat: Beat | None = None
        self._transport = transport
        self._caller = Caller(transport, jitter=jitter)
        self._machine = Membership(settings)
        self._role = role
        self._listeners = listeners or Listeners()
        self._leaves = settings.group_instance_id is None if leave_on_close is None else leave_on_close
        self._jitter = jitter
        self._tasks = asyncio.TaskGroup()
        self._callbacks = CallbackQueue(self._tasks, self.fail)
        self._broadcast: Broadcast[Share] = Broadcast()
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._current: Assigned[Share] | None = None
        """What the coordinator has given to this member."""
        self._owned: Share | None = None
        """What the callbacks were told to hold, with what is being revoked: nobody else has any of it."""
        self._last: tuple[Share | None, int] = (None, -1)
        """What was held when this member joined last, and in which generation."""
        self._failure: Exception | None = None
        self._closing = False
        self._chores: list[asyncio.Task[None]] = []

    # --- where it stands ----------------------------------------------------------------------

    @property
    def namespace(self) -> str:
        return self._machine.settings.namespace

    @property
    def group_id(self) -> str:
        return self._machine.settings.group_id

    @property
    def member_id(self) -> str:
        """Given by the coordinator; empty before the first answer."""
        return self._machine.member_id

    @property
    def generation_id(self) -> int:
        """The generation, which is the fencing token; -1 while in none."""
        return self._machine.generation_id

    @property
    def is_leader(self) -> bool:
        """Whether this member leads the generation that it is in."""
        return self._machine.is_leader

    @property
    def assignment(self) -> Share | None:
        """What this member may act on at this moment; None where it holds nothing.

        The clock is asked each time, so the answer is right even where the event loop was blocked past the deadline.
        """
        return self._current.share if self._current is not None and self._machine.holds(self._now_ms()) else None

    @property
    def valid_until(self) -> float | None:
        """When `assignment` ends unless it is renewed, in seconds of the event loop's clock; None if nothing is held.

        Always earlier than the moment from which the coordinator may give it to somebody else.
        """
        deadline_ms = self._machine.deadline_ms
        return None if deadline_ms is None else deadline_ms / 1000

    @property
    def revoke_by(self) -> float | None:
        """By when `on_revoked` must have returned, however well the coordinator can be reached meanwhile."""
        deadline_ms = self._machine.revoke_by_ms
        return None if deadline_ms is None else deadline_ms / 1000

    @property
    def unreachable_since(self) -> float | None:
        """Since when the coordinator has not answered; None while it does. Unreachable is not lost."""
        since_ms = self._machine.unreachable_since_ms
        return None if since_ms is None else since_ms / 1000

    def check_deadline(self) -> None:
        """Notice at once where the deadline has passed, though the event loop had no time to say so."""
        self._react(self._machine.on_time(self._now_ms()))
        self._wake.set()

    # --- waiting and watching -----------------------------------------------------------------

    async def wait_assigned(self) -> Assigned[Share]:
        """Return as soon as this member holds something (which may be nothing at all to do).

        Raises:
            MembershipLost: The member was closed meanwhile.
            CoordinatorError: The coordinator refuses this member for good.
        """
        while self._current is None or self.assignment is None:
            if self._failure is not None:
                raise self._failure
            if self._machine.is_final:
                raise MembershipLost("the member is closed")
            await self._changed.wait()
        return self._current

    async def events(self) -> AsyncIterator[MemberEvent[Share]]:
        """What happens to this member, beginning with what it holds now. For watching: work is stopped by callbacks."""
        async for event in self._broadcast.listen(self._current):
            yield event
        if self._failure is not None:
            raise self._failure

    # --- progress and fences ------------------------------------------------------------------

    async def commit(self, offsets: Iterable[OffsetToCommit]) -> None:
        """Record progress, fenced by the generation that is held now.

        Repeated while the coordinator cannot be reached, and where the group has moved on and left this member what
        it held: a resync, or a rebalance of a cooperative group.

        Raises:
            MembershipLost: Nothing is held, or the generation is over: nothing was committed.
            RebalanceInProgress: The group is between two generations: nothing was committed.
            CoordinatorUnreachable: It is not known whether it was committed, and nothing is held any more.
            OffsetMetadataTooLarge: The partitions in its detail were not committed, all others were.
        """
        items = tuple(offsets)
        backoff = Backoff(self._machine.settings.backoff_first_ms, self._machine.settings.heartbeat_backoff_cap_ms)
        concerned = self._role.concerned(self._owned, items)
        while (error := await self._commit_once(request := self._fenced(items))) is not None:
            if isinstance(error, IllegalGeneration | RebalanceInProgress):
                if not await self._moved_on(request.generation_id, concerned):
                    raise error
            elif not error.retriable or not self._holds_generation(request.generation_id):
                raise error
            else:
                await self._pause_before_again(backoff.next_ms(self._jitter()), error)
                if self.assignment is None:
                    raise error

    async def _pause_before_again(self, pause_ms: int, error: CoordinatorError) -> None:
        """As the coordinator asks, but not longer than what is held is good for."""
        asked_ms = patience_ms(error.code, error.retry_after_ms)
        left_ms = (self._machine.deadline_ms or 0) - self._now_ms()
        await asyncio.sleep(max(pause_ms, min(asked_ms, left_ms)) / 1000)

    async def _moved_on(self, generation_id: int, concerned: Share) -> bool:
        """Wait for the generation after this one; whether this member still holds there what it is about."""
        while self.generation_id == generation_id or self._machine.state is not State.STABLE:
            gives_up = self._machine.state is State.REVOKING and not self._role.is_cooperative
            if self.assignment is None or gives_up or self._closing:
                return False
            await self._changed.wait()
        return self._owned is not None and not self._role.without(concerned, self._owned)

    async def fetch_offsets(self, topics: Sequence[TopicPartitions] | None = None) -> tuple[FetchedOffset, ...]:
        """The group's committed offsets; an offset of -1 where nothing was committed."""
        settings = self._machine.settings
        wanted = None if topics is None else tuple(topics)
        reply = await self._caller.ask(FetchOffsets(settings.namespace, settings.group_id, wanted), FetchReply)
        return reply.offsets

    async def verify_fence(self) -> FenceReply:
        """Ask the coordinator whether this member's generation is still the current one.

        Raises:
            MembershipLost: It is not, or nothing is held.
        """
        settings = self._machine.settings
        if self.assignment is None:
            raise MembershipLost("this member holds nothing")
        request = VerifyFence(settings.namespace, settings.group_id, self.generation_id, self.member_id)
        return await self._caller.ask(request, FenceReply)

    async def signed_token(self) -> str:
        """A signed proof that this member is in the current generation, for services that check it offline.

        It is good for a minute or so (the server's `fence_token_ttl_ms`): ask again for the next write that needs one.
        See `rota.fencing.tokens.Fence` for the other side.

        Raises:
            MembershipLost: The generation is over, or nothing is held.
            InvalidRequest: The server has no keys to sign with.
        """
        settings = self._machine.settings
        if self.assignment is None:
            raise MembershipLost("this member holds nothing")
        request = VerifyFence(settings.namespace, settings.group_id, self.generation_id, self.member_id, sign=True)
        return (await self._caller.ask(request, FenceReply)).token

    def rejoin(self, reason: str) -> None:
        """Have the group rebalance (as the leader), or bring this member's part of it up to date."""
        self._react(self._machine.request_rejoin(self._now_ms(), reason))
        self._wake.set()

    def _fenced(self, offsets: tuple[OffsetToCommit, ...]) -> CommitOffsets:
        if self.assignment is None:
            raise MembershipLost("this member holds nothing, so it cannot commit")
        settings, machine = self._machine.settings, self._machine
        return CommitOffsets(
            settings.namespace,
            settings.group_id,
            machine.generation_id,
            offsets,
            machine.member_id,
            settings.group_instance_id,
        )

    def _holds_generation(self, generation_id: int) -> bool:
        return self.assignment is not None and self.generation_id == generation_id

    async def _commit_once(self, request: CommitOffsets) -> CoordinatorError | None:
        sent_at_ms = self._now_ms()
        answer = await self._try_send(request, _COMMIT_TIMEOUT_MS)
        if isinstance(answer, CoordinatorUnreachable):
            self._react(self._machine.on_failure(request, sent_at_ms, self._now_ms(), self._jitter()))
            return answer
        reply = answer.reply
        self._react(self._machine.on_reply(request, reply, sent_at_ms, self._now_ms(), self._jitter()))
        self._wake.set()
        if reply.error is not ErrorCode.NONE:
            return error_for(reply.error, reply.detail, answer.retry_after_ms)
        assert isinstance(reply, CommitReply)
        refused = [partition for partition in reply.partitions if partition.error is not ErrorCode.NONE]
        if not refused:
            return None
        names = ", ".join(f"{partition.topic}/{partition.partition}" for partition in refused)
        return error_for(refused[0].error, f"not committed: {names}")

    # --- the block ----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._driver = self._tasks.create_task(self._drive(), name=f"rota member of {self.group_id}")
        if self._pulse is not None:
            self._pulse.keep(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pulse is not None:
            self._pulse.release(self)
        try:
            await self._close()
        except asyncio.CancelledError as cancelled:
            error = cancelled
            raise
        finally:
            self._machine.abandon()
            self._wake.set()
            await self._end_tasks(error)

    async def _close(self) -> None:
        """Let work stop, then tell the group; the driver heartbeats until then, and ends once we have left."""
        self._closing = True
        if self._driver.done():
            return
        self._callbacks.add(self._revoke_all)
        await self._callbacks.drain()
        self._leave("the member was closed")
        await asyncio.wait((self._driver,), timeout=_CLOSE_TIMEOUT_S)

    def _leave(self, reason: str) -> None:
        self._react(self._machine.leave(self._now_ms(), reason) if self._leaves else self._machine.abandon())
        self._wake.set()

    async def _end_tasks(self, error: BaseException | None) -> None:
        """Every task is over when this returns. An error of the block goes its own way; one of the tasks is raised."""
        for chore in self._chores:
            chore.cancel()
        cancelled = error if isinstance(error, asyncio.CancelledError) else None
        try:
            await self._tasks.__aexit__(type(cancelled) if cancelled else None, cancelled, None)
        except BaseExceptionGroup as group:
            raise _first_leaf(group) from None
        finally:
            self._broadcast.end()
            self._changed.set()

    def _in_background(self, chore: Coroutine[None, None, None]) -> None:
        """Run something for as long as the block lasts."""
        self._chores.append(self._tasks.create_task(chore))

    # --- stepping aside -----------------------------------------------------------------------

    async def step_aside(self, reason: str) -> None:
        """Stop work in order and leave the group, but not for good: `come_back` joins again, as somebody new."""
        self._callbacks.add(self._revoke_all)
        await self._callbacks.drain()
        self._react(self._machine.step_aside(self._now_ms(), reason))
        self._wake.set()
        while self._machine.state is State.LEAVING:
            await self._changed.wait()

    def withdraw(self, reason: str) -> None:
        """As `step_aside`, at once: what is held is lost, whatever its work is at."""
        self._drop(reason)
        self._react(self._machine.step_aside(self._now_ms(), reason))
        self._wake.set()

    def come_back(self) -> None:
        """Join again after having stepped aside."""
        if self._machine.is_away:
            self._machine.come_back(self._now_ms())
            self._wake.set()

    # --- the driver ---------------------------------------------------------------------------

    async def _drive(self) -> None:
        while not self._machine.is_final:
            planned = self._machine.next_request(self._now_ms())
            if planned is None or planned.send_at_ms > self._now_ms():
                await self._rest(None if planned is None else planned.send_at_ms)
            else:
                await self._exchange(planned)
            self._react(self._machine.on_time(self._now_ms()))
        if self._failure is not None:
            await self._callbacks.drain(_CLOSE_TIMEOUT_S)
            raise self._failure

    async def _rest(self, until_ms: int | None) -> None:
        """Wait until then, until the deadline, or until something wakes the driver."""
        deadline_ms = self._machine.deadline_ms
        alarms = [at_ms for at_ms in (until_ms, deadline_ms) if at_ms is not None]
        try:
            async with asyncio.timeout_at(min(alarms) / 1000 if alarms else None):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _exchange(self, planned: Planned) -> None:
        """One call, unless what happens meanwhile makes it pointless: then it is hung up."""
        request, sent_at_ms = planned.request, self._now_ms()
        call_task = self._tasks.create_task(self._try_send(request, planned.timeout_ms))
        call_task.add_done_callback(lambda _: self._wake.set())
        try:
            while not call_task.done() and self._machine.wants(request, self._now_ms()):
                await self._rest(None)
                if not call_task.done():
                    self._react(self._machine.on_time(self._now_ms()))
        finally:
            call_task.cancel()
        if not call_task.done() or call_task.cancelled():
            return
        answer, now_ms = call_task.result(), self._now_ms()
        if isinstance(answer, CoordinatorUnreachable):
            self._react(self._machine.on_failure(request, sent_at_ms, now_ms, self._jitter()))
        else:
            reply, jitter = answer.reply, self._jitter()
            waits_ms = patience_ms(reply.error, answer.retry_after_ms)
            self._react(self._machine.on_reply(request, reply, sent_at_ms, now_ms, jitter, waits_ms))

    async def _try_send(self, request: Request, timeout_ms: int) -> Answer | CoordinatorUnreachable:
        """That nobody answers is an outcome here, not an exception: it must not end the tasks beside it."""
        try:
            return await self._transport.send(request, timeout_ms=timeout_ms)
        except CoordinatorUnreachable as error:
            return error

    def _now_ms(self) -> int:
        if (beat := self._beat) is not None:
            # Before time is looked at, what was heard meanwhile, by the thread that is not blocked when this one is.
            self._beat = None
            self._machine.heard(beat.request, beat.reply, beat.sent_at_ms)
        # Loops ring timers up to their clock's resolution too soon: what is due must not read as not yet.
        return int(asyncio.get_running_loop().time() * 1000 + 1e-3)

    # --- being kept alive by another thread ---------------------------------------------------

    def overdue_heartbeat(self) -> Heartbeat | None:
        """For the pulse."""
        now_ms, beat = int(time.monotonic() * 1000), self._beat
        if beat is not None and now_ms < beat.sent_at_ms + self._machine.settings.session_timeout_ms // 2:
            return None
        return self._machine.overdue_heartbeat(now_ms)

    def note_beat(self, beat: Beat) -> None:
        """For the pulse: looked at when this member next reads the clock."""
        self._beat = beat

    # --- what the state machine says ----------------------------------------------------------

    def _react(self, happened: list[core.Event]) -> None:
        for event in happened:
            self._react_to(event)
        self._changed.set()
        if not self._machine.is_final:
            self._changed.clear()

    def _react_to(self, event: core.Event) -> None:
        _log.debug("member %s of group %s: %s", self.member_id, self.group_id, event)
        match event:
            case core.JoinedAsLeader():
                self._tasks.create_task(self._lead(event))
            case core.Assigned():
                self._hold(event)
            case core.RebalanceStarted():
                self._broadcast.publish(Rebalancing(event.generation_id, event.reason))
                self._callbacks.add(self._rejoin)
            case core.Lost():
                self._lose(event)
            case core.Failed():
                self._failure = error_for(event.code, event.detail)
            case core.Unreachable():
                self._broadcast.publish(Unreachable(event.since_ms / 1000))
            case core.Reachable():
                self._broadcast.publish(Reachable())
            case core.AssignmentFailed():
                _log.warning("group %s could not be assigned: %s", self.group_id, event.detail)
                self._broadcast.publish(event)

    async def _lead(self, event: core.JoinedAsLeader) -> None:
        """Assign, and tell all if that fails: an exception here is news for the group, not the end of its leader."""
        try:
            assignments = await call(self._role.assign, event)
            self._machine.assign(event.generation_id, assignments)
        except Exception as error:
            _log.exception("group %s: the assignment failed", self.group_id)
            self._machine.assignment_failed(event.generation_id, f"{type(error).__name__}: {error}")
        self._wake.set()

    def _hold(self, event: core.Assigned) -> None:
        try:
            share = self._role.read(event)
        except Exception as error:
            self.fail(error)
            return
        assigned = Assigned(event.generation_id, share, event.is_leader, event.leader_id, event.protocol_name)
        self._current = assigned
        self._callbacks.add(partial(self._take_up, assigned))

    def _lose(self, event: core.Lost) -> None:
        _log.warning("member %s of group %s lost its assignment: %s", self.member_id, self.group_id, event.reason)
        self._drop(event.reason)

    def _drop(self, reason: str) -> None:
        """Stop work at once: it does not wait for what is being called."""
        current, self._current = self._current, None
        owned, self._owned = self._owned, None
        self._last = (None, -1)
        self._machine.say(self._role.protocols(*self._last))
        if current is not None and owned is not None:
            self._broadcast.publish(Lost(current.generation_id, owned, reason))
            deadline = asyncio.get_running_loop().time() + self._machine.settings.margin_ms / 1000
            self._callbacks.interrupt(partial(notify, self._listeners.on_lost, owned, deadline=deadline))
        else:
            self._callbacks.interrupt(_nothing)

    def fail(self, error: Exception) -> None:
        """The user's code raised: this member can only stop work, leave, and end its block with the error."""
        if self._failure is None:
            self._failure = error
        self._closing = True
        self._drop(f"{type(error).__name__}: {error}")
        self._callbacks.add(self._leave_broken)

    async def _leave_broken(self) -> None:
        self._leave("its callback raised")

    # After each wait for the user's code what is current is looked at again: code that does not heed its
    # cancellation comes back when all it knows of is over.

    async def _take_up(self, assigned: Assigned[Share]) -> None:
        """Give up what is not assigned any more, then take up what is new."""
        owned, share = self._owned, assigned.share
        removed = None if owned is None else self._role.without(owned, share)
        if removed and self._current is assigned:
            await self._give_up(assigned.generation_id, removed)
        if self._current is not assigned:
            return
        self._owned = share
        self._broadcast.publish(assigned)
        added = share if owned is None else self._role.without(share, owned)
        await notify(self._listeners.on_assigned, added, share, deadline=self.valid_until)
        if removed and self._role.is_cooperative and self._current is assigned:
            # Nobody is given what was revoked before all have joined without it.
            self.rejoin("gave up what was revoked")

    async def _rejoin(self) -> None:
        """Give up what must be, and join the next generation, unless this member is about to leave."""
        current, owned = self._current, self._owned
        if self._closing:
            return
        if not self._role.is_cooperative:
            await self._revoke_all()
        elif owned is not None and (unwanted := self._role.unwanted(owned)):
            await self._give_up(self.generation_id, unwanted)
            if self._current is current:
                self._owned = self._role.without(owned, unwanted)
        if self._current is current or self._current is None:
            if current is not None and owned is not None:
                self._last = (self._owned if self._role.is_cooperative else owned, current.generation_id)
            protocols = self._role.protocols(*self._last)
            self._machine.rejoin(self._now_ms(), protocols, holding=self._role.is_cooperative)
            self._wake.set()

    async def _revoke_all(self) -> None:
        """Stop all work; nothing is held any more."""
        current = self._current
        if self._owned is not None:
            await self._give_up(self.generation_id, self._owned)
        if self._current is current:
            self._owned = self._current = None

    async def _give_up(self, generation_id: int, removed: Share) -> None:
        await notify(self._listeners.on_revoked, removed, deadline=self.revoke_by)
        self._broadcast.publish(Revoked(generation_id, removed))


async def _nothing() -> None:
    """To interrupt what is being called."""


def _first_leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """A member has one reason to end; that it comes in a group is the task group's business."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
