"""One member of one group: joins, leads, syncs, heartbeats, rejoins and leaves in the background.

A member has two main tasks. The driver (`driver.py`) sends the calls that the state machine of `rota.core.membership`
plans. The user's callbacks (`holding.py`) run one after the other in another task, so that slow work never delays a
heartbeat.
Closing and stepping aside run in separate tasks: the calling task may be part of the work that has to end first.

Each share that `on_assigned` received is ended by `on_revoked`, or by `on_lost` if it is too late for that, if the
member fails, or if the close timeout is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar

from rota.client.callbacks import CallbackQueue, Listeners, call, is_inside
from rota.client.calls import Caller
from rota.client.commits import Commits
from rota.client.context import ClientContext
from rota.client.driver import Driver
from rota.client.errors import MembershipLost, error_for
from rota.client.events import Assigned, Broadcast, GenerationFailed, MemberEvent, Reachable, Rejected, Unreachable
from rota.client.holding import Holding
from rota.client.options import STOP_DRAIN_S
from rota.client.roles import Role
from rota.client.running import Running
from rota.client.stats import MemberStats
from rota.client.stop_deadline import Reminder, Step, StopDeadline
from rota.client.tasks import BackgroundTasks
from rota.core.membership import Membership, MembershipSettings, State
from rota.core.membership import events as core
from rota.protocol.messages import (
    FenceReply,
    FetchedOffset,
    FetchOffsets,
    FetchReply,
    OffsetToCommit,
    TopicPartitions,
    VerifyFence,
)

Share = TypeVar("Share")

_log = logging.getLogger(__name__)


class _MemberEnded(Exception):
    """Cancels the block's body; the member's own failure is raised instead."""


class Member(Running, Generic[Share]):
    """A membership for an `async with` block, or from `start` to `close`.

    Leaving the block is two-phase: `on_revoked` finishes first, then the group is left. If the coordinator refuses
    this member for good (`FencedInstanceId`, `InvalidRequest`, …) or a callback raises, the block is
    cancelled and that error comes out of it, unless the body raises one of its own.

    `Share` is the user's form of an assignment, which the role reads from it.
    """

    _kind = "member"

    def __init__(
        self,
        context: ClientContext,
        settings: MembershipSettings,
        *,
        role: Role[Share],
        listeners: Listeners[Share] | None = None,
        leave_on_close: bool | None = None,
    ) -> None:
        """`leave_on_close`: whether closing sends a LeaveGroup; by default static members do not, because
        they return.
        """
        super().__init__()
        self._context = context
        self._stats = MemberStats(context.stats, settings.namespace, settings.group_id, self._kind)
        self._caller = Caller(context.transport, jitter=context.jitter, stats=self._stats)
        self._machine = Membership(settings)
        self._deadline = StopDeadline()
        self._role = role
        self._is_static = settings.group_instance_id is not None
        self._leaves = not self._is_static if leave_on_close is None else leave_on_close
        self._jitter = context.jitter
        self._block = asyncio.TaskGroup()
        self._tasks = BackgroundTasks(self._fail)
        self._callbacks = CallbackQueue(id(self), self._fail)
        self._broadcast: Broadcast[MemberEvent[Share]] = Broadcast()
        self._driver = Driver(
            self._machine,
            context.transport,
            self._tasks,
            self._stats,
            jitter=context.jitter,
            on_event=self._on_event,
            on_outcome=self._on_outcome,
        )
        self._holding: Holding[Share] = Holding(
            self._machine,
            role,
            listeners or Listeners(),
            self._driver,
            self._callbacks,
            self._broadcast,
            self._fail,
            self._stats,
            self._deadline,
        )
        self._commits: Commits[Share] = Commits(
            self._machine, role, self._driver, self._tasks, context.jitter, self._stats, self._holding
        )
        self._holding.commits = self._commits
        self._wake = self._driver.wake
        self._changed = self._driver.changed
        self._failure: BaseException | None = None
        self._driving: asyncio.Task[None] | None = None
        self._preparing: asyncio.Task[None] | None = None
        """The driving task, until it has all that it needs to join."""
        self._closing: asyncio.Task[None] | None = None
        self._assigning: asyncio.Task[None] | None = None
        self._stepping: asyncio.Task[None] | None = None
        self._failed_unit = ""
        self._comes_back = False
        self._over = asyncio.Event()
        self._reminder = Reminder(f"group {self.group_id}", self._holding.at_work)

    # --- current state ------------------------------------------------------------------------

    @property
    def namespace(self) -> str:
        return self._machine.settings.namespace

    @property
    def group_id(self) -> str:
        return self._machine.settings.group_id

    @property
    def member_id(self) -> str:
        """The id that the coordinator assigned; empty before the first answer."""
        return self._machine.member_id

    @property
    def generation_id(self) -> int:
        """The generation; -1 outside of one. Resources should compare `fencing_token` instead."""
        return self._machine.generation_id

    @property
    def fencing_token(self) -> int:
        """The fencing token; -1 outside of a generation. The next process with this `group_instance_id` gets a higher
        one.
        """
        return self._machine.fencing_token

    @property
    def is_leader(self) -> bool:
        """Whether this member leads its generation."""
        return self._machine.is_leader

    @property
    def assignment(self) -> Share | None:
        """The share that this member may use now, by the clock, also after a blocked event loop or a sleeping machine;
        None without one. Any thread may ask.
        """
        current = self._holding.current
        return current.share if current is not None and self._driver.holds() else None

    @property
    def valid_until(self) -> float | None:
        """The end of `assignment` unless it is renewed, in seconds of the event loop's clock; None without a share.

        Always earlier than the moment from which the coordinator may give it to another member.
        """
        return self._driver.loop_time(self._machine.deadline_ms)

    @property
    def unreachable_since(self) -> float | None:
        """Start of an outage after a failed heartbeat; None while answers arrive. Unreachable does not mean lost."""
        return self._driver.loop_time(self._machine.unreachable_since_ms)

    @property
    def trouble(self) -> str:
        """Why this member's calls have not been served for more than a second; empty while they are."""
        return self._machine.trouble

    @property
    def is_open(self) -> bool:
        """Whether the block was entered, and is not being closed."""
        return self._driving is not None and self._closing is None

    @property
    def _is_new(self) -> bool:
        return self._driving is None and self._closing is None

    @property
    def is_over(self) -> bool:
        """Whether this member was closed, or has failed."""
        return self._over.is_set()

    def _now_ms(self) -> int:
        return self._driver.now_ms()

    # --- waiting and watching -----------------------------------------------------------------

    async def wait_assigned(self) -> Assigned[Share]:
        """Return as soon as this member has an assignment, which may be empty.

        Raises:
            MembershipLost: The member was closed during the wait.
            CoordinatorError: The coordinator refuses this member for good.
            RuntimeError: The block was not entered.
        """
        await self._until_entered()
        while (current := self._holding.current) is None or self.assignment is None:
            if self._failure is not None:
                raise self._failure
            if self._machine.is_final:
                raise MembershipLost("the member is closed")
            await self._changed.wait()
        return current

    async def events(self) -> AsyncIterator[MemberEvent[Share]]:
        """Yield this member's events, starting with its current share. Use them to observe; callbacks stop the work."""
        await self._until_entered()
        current = self._holding.current
        async for event in self._broadcast.listen(*(() if current is None else (current,))):
            yield event
        if self._failure is not None:
            raise self._failure

    # --- progress and fences ------------------------------------------------------------------

    async def commit(self, offsets: Iterable[OffsetToCommit]) -> None:
        """Commit progress, fenced by the current generation.

        Commits are sent in the order of the calls, even if the caller is cancelled. They are repeated while the
        coordinator cannot be reached, and after a resync or a cooperative rebalance in which this member kept its
        share.

        As in Kafka, the fence is the generation, not the assignment: commit only what is in `assignment`.

        Raises:
            MembershipLost: The member has no share, or the generation is over: no offset was committed.
            RebalanceInProgress: The group is between two generations: no offset was committed.
            CoordinatorUnreachable: The outcome is unknown, and the share is lost.
            InvalidRequest: A coordinator never accepts one of the offsets: no offset was committed. With the code
                `OFFSET_METADATA_TOO_LARGE` the partitions in the detail were not committed, but all others were.
        """
        await self._until_entered()
        await asyncio.shield(self._commits.add(tuple(offsets)))

    async def fetch_offsets(self, topics: Sequence[TopicPartitions] | None = None) -> tuple[FetchedOffset, ...]:
        """Return the group's committed offsets; an offset of -1 means no commit."""
        settings = self._machine.settings
        wanted = None if topics is None else tuple(topics)
        reply = await self._caller.ask(FetchOffsets(settings.namespace, settings.group_id, wanted), FetchReply)
        self._commits.note_fetched(reply.offsets)
        return reply.offsets

    async def verify_fence(self) -> FenceReply:
        """Ask the coordinator whether this member's generation is still the current one.

        Raises:
            MembershipLost: It is not, or the member has no share.
        """
        return await self._verify(sign=False)

    async def signed_token(self) -> str:
        """Return a signed proof that this member is in the current generation, for services that check it offline.

        It is valid for about a minute (`fence_token_ttl_ms`). `rota.fencing.tokens.Fence` checks it.

        Raises:
            MembershipLost: The generation is over, or the member has no share.
            InvalidRequest: The server has no keys to sign with.
        """
        return (await self._verify(sign=True)).token

    async def _verify(self, *, sign: bool) -> FenceReply:
        if self.assignment is None:
            raise MembershipLost("this member has no share")
        request = VerifyFence(self.namespace, self.group_id, self.generation_id, self.member_id, sign=sign)
        return await self._caller.ask(request, FenceReply)

    def rejoin(self, reason: str) -> None:
        """As the leader, start a rebalance; otherwise join again. Any thread and any callback may call it."""
        self._driver.rejoin(reason)

    # --- the block ----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._check_new()
        self._context.check_usable()
        await self._block.__aenter__()
        self._driver.begin()
        if self._context.pulse is not None:
            self._context.pulse.keep(self._driver)  # This comes first: a process may have no thread left.
        self._driving = self._tasks.create(self._drive(), name=f"rota member of {self.group_id}")
        self._block.create_task(self._watch(self._driving))
        self._context.members.add(self)
        self._stats.begin(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cancelled = error if isinstance(error, asyncio.CancelledError) else None
        try:
            await asyncio.shield(self._begin_close(STOP_DRAIN_S))
        except asyncio.CancelledError as while_closing:
            cancelled = while_closing
            await asyncio.wait((self._begin_close(0.0),))
        await self._end_block(error, cancelled)

    async def _end_block(self, error: BaseException | None, cancelled: asyncio.CancelledError | None) -> None:
        """Raise a cancellation from outside, or the member's own failure; an error of the body propagates by itself."""
        with suppress(_MemberEnded):
            try:
                await self._block.__aexit__(type(cancelled) if cancelled else None, cancelled, None)
            except BaseExceptionGroup as group:
                raise _MemberEnded from group
        failure = self._failure
        if failure is None or failure is error:
            return
        if error is None or isinstance(error, asyncio.CancelledError):
            raise failure
        _log.error("member of %s had failed before its `async with` block raised", self.group_id, exc_info=failure)
        error.add_note(f"rota: the member itself had failed: {type(failure).__name__}: {failure}")

    async def _drive(self) -> None:
        self._preparing = asyncio.current_task()
        await self._before_joining()
        self._preparing = None
        await self._driver.run()

    async def _before_joining(self) -> None:
        """Prepare what the first join requires."""

    async def _watch(self, driving: asyncio.Task[None]) -> None:
        """Cancel the block's body after the member has ended for its own reasons."""
        await asyncio.wait((driving,))
        if self._failure is not None:
            self._deadline.shorten()
            await self._callbacks.drain(self._deadline, Step.WORK)
            raise _MemberEnded

    # --- closing ------------------------------------------------------------------------------

    async def _close(self, drain_s: float) -> None:
        await asyncio.shield(self._begin_close(drain_s))

    def _close_now(self) -> None:
        self._deadline.shorten(0.0)

    def _is_inside(self) -> bool:
        return is_inside(id(self))

    async def _until_over(self) -> None:
        await self._over.wait()

    def _failure_at_end(self) -> BaseException | None:
        return self._failure

    def _begin_close(self, drain_s: float) -> asyncio.Task[None]:
        """Close in a separate task, which continues if the waiting callers are cancelled."""
        self._deadline.shorten(drain_s)
        if self._closing is None:
            self._holding.is_leaving = True
            self._closing = asyncio.create_task(self._close_in_order())
        return self._closing

    async def _close_in_order(self) -> None:
        """Let work stop, then leave the group; the driver sends heartbeats until then, and ends after leaving."""
        if self._driving is not None and not self._driving.done():
            has_stopped = await self._stop_work()
            await self._before_leaving(Step.LOSS)
            self._leave(sends=has_stopped)
            if self._preparing is not None:
                self._preparing.cancel()
            if not await self._deadline.wait((self._driving,), Step.LEAVE):
                _log.warning("group %s was not left: no answer before the end of this stop", self.group_id)
        else:  # Work in a thread cannot be cancelled.
            await self._callbacks.drain(self._deadline, Step.LEAVE)
        await self._end()

    async def _before_leaving(self, step: Step) -> None:
        """Run before all tasks end, while this is still a member, on every path of closing."""

    async def _end(self) -> None:
        """End all tasks, except for callbacks that ignore their cancellation."""
        if self._context.pulse is not None:
            self._context.pulse.release(self._driver)
        self._machine.abandon()
        self._wake.set()
        await self._before_leaving(Step.END)
        await self._tasks.cancel(self._deadline.left_s(Step.END))
        self._callbacks.cancel()
        await self._callbacks.drain(self._deadline, Step.END)
        self._context.troubles.over(self, was_closed=True)
        self._context.members.discard(self)
        self._stats.end()
        self._broadcast.end()
        self._changed.set()
        self._over.set()

    async def _stop_work(self) -> bool:
        """Let work stop, and wait for a requested member id: the group would wait for a member that could not leave.

        Return False if work continues on a lost share: then only the session's expiry may end the membership.
        """
        drain, deadline = self._callbacks.drain, self._deadline
        self._holding.is_given_up = True
        self._reminder.start()
        self._callbacks.add(self._holding.give_all_up)
        has_stopped = await drain(deadline, Step.CLEAN_UP)
        if not has_stopped and not (self._holding.stopped and await drain(deadline, Step.LOSS)):
            _log.error("group %s: %s has not ended in time, and is cancelled", self.group_id, self._reminder.at_work())
            self._holding.lose("closed before on_revoked had returned")
            if not await drain(deadline, Step.LOSS):
                _log.error(
                    "group %s: %s ignores its cancellation: the group is not left, "
                    "so that no other member is assigned its share before the session expires",
                    self.group_id,
                    self._reminder.at_work(),
                )
                return False
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline.left_s(Step.LOSS)):
                await self._driver.until_named()
        self._reminder.stop()
        return True

    def _leave(self, *, sends: bool) -> None:
        reason = "the member was closed" if self._failure is None else "its callback raised"
        if self._failed_unit:
            reason = f"its work on {self._failed_unit} raised {self._failure!r}"
        leaves, now_ms = self._leaves and sends, self._now_ms()
        unit = self._failed_unit
        self._driver.react(self._machine.leave(now_ms, reason, unit) if leaves else self._machine.abandon())
        self._wake.set()

    def _in_background(self, chore: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run a task while the member lives; an exception of it ends the member."""
        return self._tasks.create(chore)

    async def run(self, *, drain_timeout: float = STOP_DRAIN_S, handle_signals: bool = True) -> None:
        """Run the member until a signal, `stop` or cancellation; inside or outside of the block.

        SIGTERM and SIGINT stop in order, unless the program handles them: `on_revoked` is awaited for `drain_timeout`,
        and the group is left. A second signal cancels. This returns at most 2.5 s after that time.
        """
        with self._only_run(drain_timeout):
            async with self._own_block_for_run():
                await self._run_until_stopped(handle_signals, drain_timeout)

    async def _until_settled(self) -> None:
        """Return when the member is in no rebalance or callback, or has no share."""
        while self.assignment is not None and not (self._machine.state is State.STABLE and self._callbacks.is_idle):
            if not self._callbacks.is_idle:
                await self._callbacks.drain(self._deadline, Step.END)
            else:
                await self._changed.wait()

    # --- stepping aside -----------------------------------------------------------------------

    async def step_aside(self, reason: str) -> None:
        """Stop work in order and leave the group until `come_back`, which joins again as a new member.

        In a callback it returns at once, and the member steps aside when its callbacks have returned.
        """
        await self._until_entered()
        stepping = self._begin_step_aside(reason)
        if not self._is_inside():
            await asyncio.wait((stepping,))

    def _begin_step_aside(self, reason: str, failed_unit: str = "") -> asyncio.Task[None]:
        """Step aside as `step_aside` does, in a separate task that continues if the waiting callers are cancelled."""
        if self._stepping is None or self._stepping.done():
            self._comes_back = False
            self._holding.is_leaving = True
            self._stats.steps_out("stepped_aside")
            self._stepping = self._tasks.create(self._step_aside(reason, failed_unit))
        return self._stepping

    async def _step_aside(self, reason: str, failed_unit: str) -> None:
        self._deadline.shorten()
        has_stopped = await self._stop_work()
        if self._closing is not None:
            return
        now_ms = self._now_ms()
        self._driver.react(self._machine.step_aside(now_ms, reason, failed_unit, silently=not has_stopped))
        self._wake.set()
        while self._machine.state is State.LEAVING:
            await self._changed.wait()
        if self._comes_back:
            self._join_again()

    def _withdraw(self, reason: str) -> None:
        """Step aside at once: the share is lost even if its work runs. Static members keep their place."""
        self._stats.steps_out("no_progress")
        self._holding.lose(reason)
        self._driver.react(self._machine.step_aside(self._now_ms(), reason, silently=self._is_static))
        self._wake.set()

    def come_back(self) -> None:
        """Join again after stepping aside; if leaving is still in progress, right after it."""
        self._comes_back = self._stepping is not None and not self._stepping.done()
        if not self._comes_back:
            self._join_again()

    def _join_again(self) -> None:
        if self._machine.is_away and self._closing is None:
            self._holding.is_leaving = self._holding.is_given_up = False
            self._deadline.lift()
            self._reminder.stop()
            # Its subscription may have changed since it stepped aside.
            self._machine.say(self._role.protocols(None, -1))
            self._machine.come_back(self._now_ms())
            self._wake.set()

    # --- events -------------------------------------------------------------------------------

    def _on_event(self, event: core.Event) -> None:
        self._stats.observe(event)
        match event:
            case core.JoinedAsLeader():
                # A slow assignment of a former generation must not replace the current one.
                if self._assigning is not None:
                    self._assigning.cancel()
                self._assigning = self._tasks.create(self._assign(event))
            case core.Assigned():
                self._holding.take(event)
            case core.RebalanceStarted():
                self._holding.move_on(event)
            case core.Lost():
                self._holding.lose(event.reason)
            case core.Failed():
                self._failure = error_for(event.code, event.detail)
            case core.Unreachable():
                self._broadcast.publish(Unreachable(self._driver.seconds(event.since_ms), event.cause))
                self._context.troubles.publish(self, event.cause, event.since_ms)
            case core.Rejected():
                self._broadcast.publish(Rejected(self._driver.seconds(event.since_ms), event.code, event.cause))
                self._context.troubles.publish(self, event.cause, event.since_ms)
            case core.Reachable():
                self._broadcast.publish(Reachable())
                self._context.troubles.over(self)
            case core.AssignmentFailed():
                _log.warning("group %s could not be assigned: %s", self.group_id, event.detail)
                self._broadcast.publish(GenerationFailed(event.generation_id, event.detail))

    async def _assign(self, event: core.JoinedAsLeader) -> None:
        """Assign a generation as its leader. An exception of the strategy fails it for all members."""
        try:
            self._machine.assign(event.generation_id, await call(self._role.assign, event))
        except Exception as error:
            _log.exception("group %s: the assignment failed", self.group_id)
            self._machine.assignment_failed(event.generation_id, f"{type(error).__name__}: {error}")
        self._wake.set()

    def _on_outcome(self) -> None:
        if cause := self._machine.trouble:
            self._context.troubles.repeat(self, cause)

    def _fail(self, error: BaseException, failed_unit: str = "") -> None:
        """End the block with an error. A `failed_unit`, such as `docs/3`, is reported; other work stops in
        order first.
        """
        self._fail_in_order(error, failed_unit)
        if not failed_unit:
            self._holding.lose(f"{type(error).__name__}: {error}")

    def _fail_in_order(self, error: BaseException, failed_unit: str) -> None:
        """Close with an error: stored offsets are committed, and `failed_unit`, if given, is reported."""
        if self._failure is None:
            self._failure, self._failed_unit = error, failed_unit
        self._begin_close(STOP_DRAIN_S)
